package flussoracle

import "context"

// Server of a cluster.
type Server struct {
	ID      int
	Address string // host:port
	Type    string // COORDINATOR or TABLET_SERVER
}

// Servers lists the servers that the cluster knows.
func (o *Oracle) Servers(ctx context.Context) (servers []Server, err error) {
	err = o.call(ctx, "servers", nil, nil, &servers)
	return servers, err
}

// Location of a bucket.
type Location struct {
	Partition   string
	PartitionID *int64 `json:"partition_id"`
	Bucket      int
	Leader      *int // id of a tablet server, nil for none
	Replicas    []int
}

// Locations returns where the buckets of a table or a partition are.
func (o *Oracle) Locations(ctx context.Context, t Table) (at []Location, err error) {
	err = o.call(ctx, "locations", t.args(), nil, &at)
	return at, err
}

// MoveLeaders moves all leaders off a tablet server, where they have replicas elsewhere,
// and waits until that is done. The server stays marked as offline for rebalancing until
// AllowLeaders.
func (o *Oracle) MoveLeaders(ctx context.Context, server int) error {
	if err := o.call(ctx, "tag_server", args{"server": server}, nil, nil); err != nil {
		return err
	}
	_, err := o.Rebalance(ctx, "LEADER_DISTRIBUTION")
	return err
}

// AllowLeaders undoes the mark of MoveLeaders.
func (o *Oracle) AllowLeaders(ctx context.Context, server int) error {
	return o.call(ctx, "untag_server", args{"server": server}, nil, nil)
}

// Rebalance rebalances the cluster, waits, and returns the final status, "null" when
// there was nothing to do. Goals are REPLICA_DISTRIBUTION, LEADER_DISTRIBUTION, RACK_AWARE.
func (o *Oracle) Rebalance(ctx context.Context, goals ...string) (status string, err error) {
	err = o.call(ctx, "rebalance", args{"goals": goals}, nil, &status)
	return status, err
}

// ACL allows an operation.
type ACL struct {
	ResourceType string `json:"resource_type"` // CLUSTER, DATABASE, TABLE
	Resource     string `json:"resource"`      // fluss-cluster, database, database.table
	User         string `json:"user"`          // * means everyone
	Host         string `json:"host"`          // "" and * mean any
	Operation    string `json:"operation"`     // READ, WRITE, CREATE, DROP, ALTER, DESCRIBE, ALL
}

// CreateACLs creates ACLs.
func (o *Oracle) CreateACLs(ctx context.Context, acls ...ACL) error {
	return o.call(ctx, "create_acls", args{"acls": withHost(acls)}, nil, nil)
}

// DropACLs drops exactly these ACLs and returns how many there were.
func (o *Oracle) DropACLs(ctx context.Context, acls ...ACL) (n int, err error) {
	err = o.call(ctx, "drop_acls", args{"acls": withHost(acls)}, nil, &n)
	return n, err
}

// ListACLs lists all ACLs that the user may see.
func (o *Oracle) ListACLs(ctx context.Context) (acls []ACL, err error) {
	err = o.call(ctx, "list_acls", nil, nil, &acls)
	return acls, err
}

func withHost(acls []ACL) []ACL {
	out := append([]ACL(nil), acls...)
	for i := range out {
		if out[i].Host == "" {
			out[i].Host = "*"
		}
	}
	return out
}
