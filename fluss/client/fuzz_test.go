package client_test

import (
	"bufio"
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/internal/frame"
)

// FuzzAnswers lets a server answer one call, of every kind, with any bytes as message:
// the client must end the call, and neither panic nor believe in more than arrived.
func FuzzAnswers(f *testing.F) {
	for api, m := range sampleAnswers() {
		b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(int16(api), int8(frame.Success), b)
	}
	f.Add(int16(flusspb.APILookup), int8(frame.Error), []byte{8, 12})
	f.Add(int16(flusspb.APILookup), int8(frame.ServerFailure), []byte{8, 12})
	f.Fuzz(func(t *testing.T, api int16, kind int8, message []byte) {
		answers := sampleAnswers()
		serve := func(r frame.Request) frame.Response {
			if r.API == api {
				return frame.Response{Kind: frame.Kind(kind), ID: r.ID, Message: message}
			}
			b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(answers[flusspb.API(r.API)])
			if err != nil {
				t.Error(err)
			}
			return frame.Response{ID: r.ID, Message: b}
		}
		var pipes pipes
		defer pipes.close()
		c, err := client.Dial(t.Context(), client.Config{
			Bootstrap: []string{"fuzz:1"}, Timeout: 5 * time.Second, RetryFor: 10 * time.Millisecond, MaxFrame: 1 << 20,
			Dial: func(context.Context, string, string) (net.Conn, error) { return pipes.dial(serve), nil },
		})
		if err != nil {
			return
		}
		defer c.Close()
		everyCall(c)
	})
}

// everyCall makes each call once; outcomes are the fuzzer's.
func everyCall(c *client.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	p := client.Physical{Path: people, TableID: 1}
	ref := client.SnapshotRef{Bucket: p.Bucket(0), SnapshotID: 1}
	c.Cluster(ctx)
	c.Databases(ctx)
	c.DatabaseInfo(ctx, "d")
	c.Tables(ctx, "d")
	c.Partitions(ctx, people)
	c.Schema(ctx, people, client.NewestSchema)
	c.Buckets(ctx, people, "")
	c.Buckets(ctx, people, "p")
	c.LatestKVSnapshots(ctx, people, "")
	c.KVSnapshotMetadata(ctx, ref.Bucket, 1)
	c.AcquireLease(ctx, "l", time.Second, []client.SnapshotRef{ref})
	c.LatestLakeSnapshot(ctx, people)
	c.Lookup(ctx, p, 0, [][]byte{{1}})
	c.PrefixLookup(ctx, p, 0, [][]byte{{1}})
	c.LimitScan(ctx, p, 0, 1)
	c.ListOffsets(ctx, p, []int32{0}, client.LatestOffset)
	c.TableStats(ctx, p, 0)
	c.PutKV(ctx, p, 0, 1, nil)
	c.FetchLog(ctx, p, 0, 0, 1, 0)
	c.ACLs(ctx, client.ACLFilter{})
	c.DropACLs(ctx, client.ACLFilter{})
	c.FileSystemToken(ctx)
	c.Coordinator().AdjustISR(ctx, 1, client.ISRChange{})
	c.Tablet(0).StopReplica(ctx, 0, ref.Bucket, 0, client.DeleteLocal)
	c.Tablet(0).NotifyLeaderAndISR(ctx, 0, client.LeaderAndISR{Physical: p})
	if t, err := c.OpenTable(ctx, people); err == nil {
		t.Scan(ctx, "", 0, 1)
	}
}

// sampleAnswers are answers of a server that is both coordinator and tablet server 0,
// for a table with one bucket.
func sampleAnswers() map[flusspb.API]proto.Message {
	node := &flusspb.ServerNode{NodeId: proto.Int32(0), Host: proto.String("fuzz"), Port: proto.Int32(1)}
	versions := &flusspb.ApiVersionsResponse{}
	out := map[flusspb.API]proto.Message{}
	for _, api := range flusspb.APIs() {
		versions.ApiVersions = append(versions.ApiVersions, &flusspb.ApiVersion{ApiKey: proto.Int32(int32(api)), MinVersion: proto.Int32(0), MaxVersion: proto.Int32(0)})
		out[api] = api.NewResponse()
	}
	table := []byte(`{"version":1,"schema":{"version":1,"columns":[{"name":"id","data_type":{"type":"INTEGER","nullable":false},"id":0}],"primary_key":["id"],"highest_field_id":0},` +
		`"partition_key":[],"bucket_key":["id"],"bucket_count":1,"properties":{},"custom_properties":{}}`)
	id, schema, zero := proto.Int64(1), proto.Int32(1), proto.Int64(0)
	out[flusspb.APIApiVersions] = versions
	out[flusspb.APIGetTableInfo] = &flusspb.GetTableInfoResponse{TableId: id, SchemaId: schema, TableJson: table, CreatedTime: zero, ModifiedTime: zero}
	out[flusspb.APIGetMetadata] = &flusspb.MetadataResponse{
		CoordinatorServer: node, TabletServers: []*flusspb.ServerNode{node},
		TableMetadata: []*flusspb.TableMetadata{{
			TablePath: &flusspb.TablePath{DatabaseName: &people.Database, TableName: &people.Table}, TableId: id, SchemaId: schema,
			TableJson: table, CreatedTime: zero, ModifiedTime: zero,
			BucketMetadata: []*flusspb.BucketMetadata{{BucketId: proto.Int32(0), LeaderId: proto.Int32(0), ReplicaId: []int32{0}}},
		}},
	}
	return out
}

// pipes serves connections without sockets.
type pipes struct {
	ends []net.Conn
	done []chan struct{}
}

func (p *pipes) dial(serve func(frame.Request) frame.Response) net.Conn {
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	p.ends, p.done = append(p.ends, theirs), append(p.done, done)
	go func() {
		defer close(done)
		r := bufio.NewReader(theirs)
		for {
			content, err := frame.Read(r, 1<<20)
			if err != nil {
				return
			}
			req, err := frame.ParseRequest(content)
			if err != nil {
				return
			}
			if _, err := theirs.Write(serve(req).Append(nil)); err != nil {
				return
			}
		}
	}()
	return ours
}

func (p *pipes) close() {
	for i, end := range p.ends {
		end.Close()
		<-p.done[i]
	}
}
