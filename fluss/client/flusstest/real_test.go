package flusstest

import (
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/internal/frame"
	"github.com/fluss-sluice/sluice/test/env"
)

// TestTheFakeOffersTheCallsThatARealServerOffers compares with a cluster of 0.9.1.
func TestTheFakeOffersTheCallsThatARealServerOffers(t *testing.T) {
	cluster := env.NeedFluss(t, env.FlussOptions{})
	c, err := client.Dial(t.Context(), client.Config{Bootstrap: []string{cluster.Bootstrap()}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	servers, err := c.Cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fake := newState(Options{Release: client.Release09})
	for id, addr := range map[int32]string{Coordinator: servers.Coordinator.Address, 0: servers.Tablets[0].Address} {
		want, have := ask(t, addr), fake.apiVersions(id)
		if !proto.Equal(have, want) {
			t.Errorf("server %d offers\n%v, the fake\n%v", id, want, have)
		}
	}
}

func ask(t *testing.T, addr string) *flusspb.ApiVersionsResponse {
	t.Helper()
	nc, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(10 * time.Second))
	name := "flusstest"
	message, err := proto.Marshal(&flusspb.ApiVersionsRequest{ClientSoftwareName: &name, ClientSoftwareVersion: &name})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Write(frame.Request{API: int16(flusspb.APIApiVersions), Message: message}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	content, err := frame.Read(nc, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := frame.ParseResponse(content)
	if err != nil {
		t.Fatal(err)
	}
	resp := &flusspb.ApiVersionsResponse{}
	if err := proto.Unmarshal(answer.Message, resp); err != nil {
		t.Fatal(err)
	}
	return resp
}
