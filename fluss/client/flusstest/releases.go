package flusstest

import (
	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// What servers of 0.9.1 answered to ApiVersions; keys since, by release, below.
var (
	coordinatorCalls = keys(1000, 1012, 1020, 1020, 1022, 1025, 1027, 1027, 1030, 1030, 1032, 1032, 1035, 1058)
	tabletCalls      = keys(1000, 1000, 1003, 1004, 1007, 1019, 1021, 1021, 1023, 1026, 1028, 1029, 1031, 1035, 1038, 1038, 1040, 1040, 1045, 1045, 1059, 1059)
	mainCoordinator  = keys(1060, 1060, 1062, 1064)
	mainTablet       = keys(1061, 1062)
)

// First keys of the releases. Calls were only ever added.
const (
	firstOf08   flusspb.API = 1043
	firstOf09   flusspb.API = 1047
	firstOfMain flusspb.API = 1060
)

// keys lists ranges, both ends included.
func keys(ends ...flusspb.API) map[flusspb.API]bool {
	out := map[flusspb.API]bool{}
	for i := 0; i < len(ends); i += 2 {
		for k := ends[i]; k <= ends[i+1]; k++ {
			out[k] = true
		}
	}
	return out
}

// offers reports whether a server of the cluster knows a call.
func (s *state) offers(server int32, api flusspb.API) bool {
	switch {
	case s.opts.Outdated && api >= firstOf08,
		s.opts.Release < client.Release09 && api >= firstOf09,
		s.opts.Release < client.ReleaseMain && api >= firstOfMain:
		return false
	case server == Coordinator:
		return coordinatorCalls[api] || mainCoordinator[api]
	}
	return tabletCalls[api] || mainTablet[api]
}

func (s *state) maxVersion(api flusspb.API) int32 {
	switch {
	case s.opts.Release < client.Release09 || s.opts.Outdated:
		return 0
	case api == flusspb.APIPutKv && s.opts.Release >= client.ReleaseMain:
		return 2
	case api == flusspb.APIPutKv, api == flusspb.APILookup, api == flusspb.APIPrefixLookup:
		return 1
	}
	return 0
}

func (s *state) apiVersions(server int32) *flusspb.ApiVersionsResponse {
	resp := &flusspb.ApiVersionsResponse{}
	for api := flusspb.APIApiVersions; api <= flusspb.APIListKvSnapshots; api++ {
		if s.offers(server, api) {
			resp.ApiVersions = append(resp.ApiVersions, &flusspb.ApiVersion{
				ApiKey: proto.Int32(int32(api)), MinVersion: proto.Int32(0), MaxVersion: proto.Int32(s.maxVersion(api)),
			})
		}
	}
	if s.opts.Release >= client.Release09 && !s.opts.Outdated {
		resp.ServerType = proto.Int32(2)
		if server == Coordinator {
			resp.ServerType = proto.Int32(1)
		}
	}
	return resp
}
