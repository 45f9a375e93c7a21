package client

import (
	"fmt"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// Release is a line of Fluss releases that behave alike here.
type Release int

// The releases, in order. 0.9.0 and 0.9.1 cannot be told apart by their calls.
const (
	ReleaseUnsupported Release = iota // 0.7 or older
	Release08
	Release09
	ReleaseMain // the development line after 0.9, August 2026
)

// String names the release.
func (r Release) String() string {
	switch r {
	case Release08:
		return "0.8"
	case Release09:
		return "0.9"
	case ReleaseMain:
		return "main (after 0.9)"
	}
	return "older than 0.8"
}

// HasLeases reports whether KV snapshots can be leased.
func (r Release) HasLeases() bool { return r >= Release09 }

// HasTableStats reports whether tablet servers count rows.
func (r Release) HasTableStats() bool { return r >= Release09 }

// HasLakeSnapshotSelection reports whether a lake snapshot can be asked for by id and
// as readable. 0.8 ignores the wish and answers with the latest, so this package
// refuses to ask it.
func (r Release) HasLakeSnapshotSelection() bool { return r >= Release09 }

// HasServerTags reports whether leaders can be moved by AddServerTag and Rebalance.
func (r Release) HasServerTags() bool { return r >= Release09 }

// StopDeletesRemote reports whether stopping a replica with deletion also deletes the
// bucket's remote directory, whatever the request says.
func (r Release) StopDeletesRemote() bool { return r <= Release08 }

// HasStandbyReplicas reports whether leader changes carry standby replicas.
func (r Release) HasStandbyReplicas() bool { return r >= ReleaseMain }

// AdjustISREqual is the code that answers an AdjustISR of an ineligible replica whose
// bucket epoch is exactly the bucket's. On main the same code also answers a stale
// leader epoch.
func (r Release) AdjustISREqual() Code {
	if r >= ReleaseMain {
		return CodeFencedLeaderEpoch
	}
	return CodeIneligibleReplica
}

// versionRange is what a server offers of one call.
type versionRange struct{ min, max int32 }

// offer is what ApiVersions answered.
type offer struct {
	kind  serverKind
	calls map[flusspb.API]versionRange
}

// serverKind is the kind of a server, 0 when it does not say (0.8).
type serverKind int32

const (
	anyServer    serverKind = 0
	coordinator  serverKind = 1
	tabletServer serverKind = 2
)

func (k serverKind) String() string {
	switch k {
	case coordinator:
		return "coordinator"
	case tabletServer:
		return "tablet server"
	}
	return "server"
}

func newOffer(resp *flusspb.ApiVersionsResponse) offer {
	o := offer{kind: serverKind(resp.GetServerType()), calls: map[flusspb.API]versionRange{}}
	for _, v := range resp.GetApiVersions() {
		o.calls[flusspb.API(v.GetApiKey())] = versionRange{v.GetMinVersion(), v.GetMaxVersion()}
	}
	return o
}

func (o offer) has(api flusspb.API) bool { _, ok := o.calls[api]; return ok }

// release recognises the line by calls that it was the first to offer. Each kind of
// server lists its own calls only, so each line needs one of either kind.
func (o offer) release() Release {
	switch {
	case o.has(flusspb.APIScanKv), o.has(flusspb.APIGetClusterHealth), o.has(flusspb.APIListKvSnapshots):
		return ReleaseMain
	case o.has(flusspb.APIPrepareLakeTableSnapshot), o.has(flusspb.APIAcquireKvSnapshotLease), o.has(flusspb.APIGetTableStats):
		return Release09
	case o.has(flusspb.APIDescribeClusterConfigs), o.has(flusspb.APIAlterTable):
		return Release08
	}
	return ReleaseUnsupported
}

// version picks the version of a call to send.
func (o offer) version(api flusspb.API, server string) (int16, error) {
	v, ok := o.calls[api]
	if !ok {
		return 0, fmt.Errorf("%s: %w: %s (a %s of Fluss %s)", api, ErrUnsupported, server, o.kind, o.release())
	}
	own := int32(api.MaxVersion())
	if v.min > own || v.max < 0 || v.min > v.max {
		return 0, fmt.Errorf("%s: %w: %s offers versions %d to %d, this client 0 to %d", api, ErrUnsupported, server, v.min, v.max, own)
	}
	return int16(min(own, v.max)), nil
}
