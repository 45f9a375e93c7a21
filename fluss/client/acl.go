package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// Resource is what an access rule is about.
type Resource int32

// The kinds of resources.
const (
	AnyResource      Resource = 1 // in filters only
	ClusterResource  Resource = 2 // name "fluss-cluster"
	DatabaseResource Resource = 3
	TableResource    Resource = 4 // name "database.table"
)

// Operation is what an access rule allows. Read, Write, Create, Drop and Alter imply
// Describe.
type Operation int32

// The operations.
const (
	AnyOperation Operation = 1 // in filters only
	OpAll        Operation = 2
	OpRead       Operation = 3
	OpWrite      Operation = 4
	OpCreate     Operation = 5
	OpDrop       Operation = 6
	OpAlter      Operation = 7
	OpDescribe   Operation = 8
)

var operations = map[Operation]string{
	AnyOperation: "any", OpAll: "all", OpRead: "read", OpWrite: "write", OpCreate: "create", OpDrop: "drop", OpAlter: "alter", OpDescribe: "describe",
}

// String names the operation.
func (o Operation) String() string {
	if name, ok := operations[o]; ok {
		return name
	}
	return fmt.Sprintf("operation %d", int32(o))
}

// Permission is the effect of a rule; there is no denial.
type Permission int32

// The permissions.
const (
	AnyPermission Permission = 1 // in filters only
	Allow         Permission = 2
)

// ACL is one access rule. What covers a database covers its tables.
type ACL struct {
	ResourceName  string
	Resource      Resource
	PrincipalName string // "*" is everyone
	PrincipalType string // "User"
	Host          string // "*" is any
	Operation     Operation
	Permission    Permission
}

// ACLFilter selects rules. "" selects any name, AnyResource, AnyOperation and
// AnyPermission any of theirs.
type ACLFilter struct {
	ResourceName  string
	Resource      Resource
	PrincipalName string
	PrincipalType string
	Host          string
	Operation     Operation
	Permission    Permission
}

// Exactly returns the filter that selects this rule only.
func (a ACL) Exactly() ACLFilter { return ACLFilter(a) }

func (a ACL) wire() *flusspb.AclInfo {
	resource, operation, permission := int32(a.Resource), int32(a.Operation), int32(a.Permission)
	return &flusspb.AclInfo{
		ResourceName: &a.ResourceName, ResourceType: &resource, PrincipalName: &a.PrincipalName, PrincipalType: &a.PrincipalType,
		Host: &a.Host, OperationType: &operation, PermissionType: &permission,
	}
}

func newACL(a *flusspb.AclInfo) ACL {
	return ACL{
		ResourceName: a.GetResourceName(), Resource: Resource(a.GetResourceType()),
		PrincipalName: a.GetPrincipalName(), PrincipalType: a.GetPrincipalType(), Host: a.GetHost(),
		Operation: Operation(a.GetOperationType()), Permission: Permission(a.GetPermissionType()),
	}
}

func (f ACLFilter) wire() *flusspb.AclFilter {
	resource, operation, permission := int32(f.Resource), int32(f.Operation), int32(f.Permission)
	return &flusspb.AclFilter{
		ResourceName: optional(f.ResourceName), ResourceType: &resource,
		PrincipalName: optional(f.PrincipalName), PrincipalType: optional(f.PrincipalType), Host: optional(f.Host),
		OperationType: &operation, PermissionType: &permission,
	}
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// MayDescribeCluster returns nil when this client's user may describe the cluster, and
// with it all it holds; else an error, of CodeAuthorization when it may not.
func (c *Client) MayDescribeCluster(ctx context.Context) error {
	return c.fromAny(ctx, flusspb.APIDescribeClusterConfigs, &flusspb.DescribeClusterConfigsRequest{}, &flusspb.DescribeClusterConfigsResponse{})
}

// ACLs lists the rules that a filter selects. Rules about what the client's user may not
// describe are left out without a word: only who MayDescribeCluster gets all.
// CodeSecurityDisabled says that the cluster has no authorizer.
func (c *Client) ACLs(ctx context.Context, filter ACLFilter) ([]ACL, error) {
	var resp flusspb.ListAclsResponse
	if err := c.fromAny(ctx, flusspb.APIListAcls, &flusspb.ListAclsRequest{AclFilter: filter.wire()}, &resp); err != nil {
		return nil, err
	}
	var out []ACL
	for _, a := range resp.GetAcl() {
		out = append(out, newACL(a))
	}
	return out, nil
}

// CreateACLs adds rules; one that exists is no error. The error names every rule that
// was refused.
func (c *Client) CreateACLs(ctx context.Context, acls ...ACL) error {
	req := &flusspb.CreateAclsRequest{}
	for _, a := range acls {
		req.Acl = append(req.Acl, a.wire())
	}
	var resp flusspb.CreateAclsResponse
	if err := c.fromCoordinator(ctx, flusspb.APICreateAcls, repeatable, req, &resp); err != nil {
		return err
	}
	var errs []error
	for _, r := range resp.GetAclRes() {
		errs = append(errs, refusal(flusspb.APICreateAcls, "the coordinator", describe(newACL(r.GetAcl())), r.GetErrorCode(), r.GetErrorMessage()))
	}
	return errors.Join(errs...)
}

// DropACLs removes the rules that the filters select and returns those that it
// removed, also beside an error that names those that were refused. It is not sent
// again after ErrNoAnswer, lest the answer leave out what the first one removed.
func (c *Client) DropACLs(ctx context.Context, filters ...ACLFilter) ([]ACL, error) {
	req := &flusspb.DropAclsRequest{}
	for _, f := range filters {
		req.AclFilter = append(req.AclFilter, f.wire())
	}
	var resp flusspb.DropAclsResponse
	if err := c.fromCoordinator(ctx, flusspb.APIDropAcls, onceOnly, req, &resp); err != nil {
		return nil, err
	}
	var dropped []ACL
	var errs []error
	for i, r := range resp.GetFilterResults() {
		errs = append(errs, refusal(flusspb.APIDropAcls, "the coordinator", fmt.Sprintf("filter %d", i), r.GetErrorCode(), r.GetErrorMessage()))
		for _, m := range r.GetMatchingAcls() {
			acl := newACL(m.GetAcl())
			err := refusal(flusspb.APIDropAcls, "the coordinator", describe(acl), m.GetErrorCode(), m.GetErrorMessage())
			if err == nil {
				dropped = append(dropped, acl)
			}
			errs = append(errs, err)
		}
	}
	return dropped, errors.Join(errs...)
}

func describe(a ACL) string {
	return fmt.Sprintf("operation %d on %q for %s:%s", a.Operation, a.ResourceName, a.PrincipalType, a.PrincipalName)
}
