package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
)

// dial connects to a fake cluster with time-outs that no test waits for unless it
// means to.
func dial(t *testing.T, cluster *flusstest.Cluster, change ...func(*client.Config)) *client.Client {
	t.Helper()
	cfg := client.Config{Bootstrap: cluster.Bootstrap(), Timeout: 20 * time.Second, RetryFor: time.Minute}
	for _, c := range change {
		c(&cfg)
	}
	c, err := client.Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func impatient(cfg *client.Config) {
	cfg.Timeout, cfg.RetryFor = 50*time.Millisecond, 400*time.Millisecond
}

var people = client.TablePath{Database: "fluss", Table: "people"}

// makePeople creates the table people(id INT, name STRING) in the fake.
func makePeople(t *testing.T, c *client.Client, buckets int, partitionKey ...string) *client.Table {
	t.Helper()
	columns := []schema.Column{column("id", "INT"), column("name", "STRING")}
	pk := []string{"id"}
	if len(partitionKey) > 0 {
		columns = append(columns, column("day", "STRING"))
		pk = append(pk, "day")
	}
	s, err := schema.New(columns, pk)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CreateTable(t.Context(), people, &schema.Table{Schema: s, BucketCount: buckets, PartitionKey: partitionKey}, client.Refuse); err != nil {
		t.Fatal(err)
	}
	return must[*client.Table](t)(c.OpenTable(t.Context(), people))
}

func person(id int32) []row.Value { return []row.Value{row.Int32(id), row.String(fmt.Sprint("p", id))} }

func TestRowsGoToTheLeadersOfTheirBuckets(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{Tablets: 3})
	c, ctx := dial(t, cluster), t.Context()
	table := makePeople(t, c, 6)
	for id := range int32(60) {
		if err := table.Upsert(ctx, person(id)); err != nil {
			t.Fatal(err)
		}
	}
	servers := map[int32]bool{}
	for _, r := range cluster.Requests(flusspb.APIPutKv) {
		servers[r.Server] = true
		if r.Version != 1 {
			t.Errorf("PutKv of version %d", r.Version)
		}
	}
	if len(servers) != 3 {
		t.Errorf("rows went to servers %v", servers)
	}
	for id := range int32(60) {
		if got := must[[]row.Value](t)(table.Get(ctx, person(id))); !row.EqualAll(got, person(id)) {
			t.Errorf("row %d: %v", id, got)
		}
	}
	if got := must[[]row.Value](t)(table.Get(ctx, person(61))); got != nil {
		t.Errorf("a row that was never written: %v", got)
	}
	if n := len(cluster.Requests(flusspb.APIGetMetadata)); n > 4 {
		t.Errorf("the cluster was asked %d times where its buckets are", n)
	}
}

func TestCallsFollowALeaderThatMoved(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{Tablets: 2})
	c, ctx := dial(t, cluster), t.Context()
	table := makePeople(t, c, 1)
	p := must[client.Physical](t)(table.Partition(ctx, ""))
	if err := table.Upsert(ctx, person(1)); err != nil {
		t.Fatal(err)
	}
	cluster.Lead(p.Bucket(0), 1)
	if got := must[[]row.Value](t)(table.Get(ctx, person(1))); got == nil {
		t.Error("the row is not found at the new leader")
	}
	cluster.Lead(p.Bucket(0), 0)
	if err := table.Upsert(ctx, person(2)); err != nil {
		t.Error(err)
	}

	cluster.Lead(p.Bucket(0), -1)
	elected := make(chan struct{})
	cluster.Next(flusspb.APIGetMetadata, flusstest.Pass, flusstest.Pass, func(x *flusstest.Exchange) {
		cluster.Lead(p.Bucket(0), 1)
		close(elected)
		flusstest.Pass(x)
	})
	if err := table.Upsert(ctx, person(3)); err != nil {
		t.Error(err)
	}
	select {
	case <-elected:
	default:
		t.Error("the call succeeded before a leader was elected")
	}
}

func TestCallsSurviveServersThatStopAndComeBack(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{Tablets: 2})
	c, ctx := dial(t, cluster), t.Context()
	table := makePeople(t, c, 1)
	p := must[client.Physical](t)(table.Partition(ctx, ""))
	if err := table.Upsert(ctx, person(1)); err != nil {
		t.Fatal(err)
	}
	cluster.HangUp(0)
	cluster.HangUp(flusstest.Coordinator)
	if got := must[[]row.Value](t)(table.Get(ctx, person(1))); got == nil {
		t.Error("no row after the connections broke")
	}
	cluster.Stop(flusstest.Coordinator)
	cluster.Lead(p.Bucket(0), 1)
	if got := must[[]row.Value](t)(table.Get(ctx, person(1))); got == nil {
		t.Error("no row while the coordinator is away")
	}
	cluster.Stop(0)
	cluster.Stop(1)
	got := make(chan error, 1)
	go func() {
		_, err := table.Get(ctx, person(1))
		got <- err
	}()
	cluster.Restart(1)
	if err := <-got; err != nil {
		t.Errorf("no row after the leader came back: %v", err)
	}
	cluster.Restart(flusstest.Coordinator)
	if err := c.CreateDatabase(ctx, "later", client.Refuse); err != nil {
		t.Error(err)
	}
}

func TestATableThatWasMadeAnewIsNotTakenForTheOldOne(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c, ctx := dial(t, cluster), t.Context()
	old := makePeople(t, c, 1)
	p := must[client.Physical](t)(old.Partition(ctx, ""))
	if err := c.DropTable(ctx, people, client.Refuse); err != nil {
		t.Fatal(err)
	}
	_, err := c.Lookup(ctx, p, 0, [][]byte{{1}})
	wantCode(t, "a dropped table", err, client.CodeTableNotExist)
	makePeople(t, c, 1)
	_, err = c.Lookup(ctx, p, 0, [][]byte{{1}})
	wantCode(t, "a table made anew", err, client.CodeTableNotExist)
	if _, err := c.Lookup(ctx, must[client.Physical](t)(c.Resolve(ctx, people, "")), 7, nil); err == nil || client.CodeOf(err) != 0 {
		t.Errorf("a bucket beyond the last: %v", err)
	}
}

func TestPartitionsAreResolvedByNameAndId(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{Tablets: 2})
	c, ctx := dial(t, cluster), t.Context()
	table := makePeople(t, c, 2, "day")
	info := table.Info()
	wantCode(t, "a partition before it is made", table.Upsert(ctx, append(person(1), row.String("2026-01-01"))), client.CodePartitionNotExist)
	for _, day := range []string{"2026-01-02", "2026-01-01"} {
		if err := c.CreatePartition(ctx, info, day, client.Refuse); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, "the same again", c.CreatePartition(ctx, info, "2026-01-01", client.Refuse), client.CodePartitionAlreadyExist)
	if err := c.CreatePartition(ctx, info, "2026-01-01", client.Ignore); err != nil {
		t.Error(err)
	}
	parts := must[[]client.Partition](t)(c.Partitions(ctx, people))
	if len(parts) != 2 || parts[0].Name != "2026-01-01" || parts[0].ID != 1 || parts[0].Values[0] != "2026-01-01" {
		t.Errorf("%+v", parts)
	}
	r := append(person(1), row.String("2026-01-02"))
	if err := table.Upsert(ctx, r); err != nil {
		t.Fatal(err)
	}
	if got := must[[]row.Value](t)(table.Get(ctx, r)); !row.EqualAll(got, r) {
		t.Errorf("%v", got)
	}
	other := append(person(1), row.String("2026-01-01"))
	if got := must[[]row.Value](t)(table.Get(ctx, other)); got != nil {
		t.Errorf("another partition's row: %v", got)
	}
	cluster.SetLakeSnapshots(people, flusstest.LakeSnapshot{ID: 5, Offsets: []client.LakeOffset{{PartitionID: &parts[0].ID, Bucket: 1, LogOffset: 9}}})
	lake := must[client.LakeSnapshot](t)(c.LatestLakeSnapshot(ctx, people))
	if len(lake.Buckets) != 1 || lake.Buckets[0].PartitionName != "2026-01-01" || lake.Buckets[0].LogOffset != 9 {
		t.Errorf("%+v", lake)
	}
	if err := c.DropPartition(ctx, info, "2026-01-01", client.Refuse); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "the same again", c.DropPartition(ctx, info, "2026-01-01", client.Refuse), client.CodePartitionNotExist)
}

// TestACallThatIsNotAnsweredHasTwoWorlds loses requests and answers: what may be
// repeated is, and what must not happen twice says that it does not know.
func TestACallThatIsNotAnsweredHasTwoWorlds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		action flusstest.Action
		stored bool
	}{
		{"the request is lost with the connection", flusstest.HangUp, false},
		{"the answer is lost with the connection", flusstest.HandleThenHangUp, true},
		{"the request is swallowed", flusstest.Lose, false},
		{"the answer is swallowed", flusstest.HandleThenSayNothing, true},
		{"the server fails", flusstest.GiveUp, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cluster := flusstest.Start(t, flusstest.Options{})
			patient := dial(t, cluster)
			table := makePeople(t, patient, 1)
			c, ctx := dial(t, cluster, func(cfg *client.Config) { cfg.Timeout = 100 * time.Millisecond }), t.Context()
			p := must[client.Physical](t)(table.Partition(ctx, ""))

			cluster.Next(flusspb.APILookup, tt.action)
			if _, err := c.Lookup(ctx, p, 0, [][]byte{{1}}); err != nil {
				t.Errorf("a look-up: %v", err)
			}
			cluster.Next(flusspb.APICreateDatabase, tt.action)
			if err := c.CreateDatabase(ctx, "a", client.Ignore); err != nil {
				t.Errorf("a creation that may be repeated: %v", err)
			}
			cluster.Next(flusspb.APICreateDatabase, tt.action)
			if err := c.CreateDatabase(ctx, "b", client.Refuse); !errors.Is(err, client.ErrNoAnswer) {
				t.Errorf("a creation that must not: %v", err)
			}
			if got := must[bool](t)(c.DatabaseExists(ctx, "b")); got != tt.stored {
				t.Errorf("the database exists: %v, want %v", got, tt.stored)
			}
			cluster.Next(flusspb.APIPutKv, tt.action)
			if err := c.PutKV(ctx, p, 0, 1, []client.Put{{Key: []byte{1}, Row: []byte{0, 1, 0}}}); !errors.Is(err, client.ErrNoAnswer) {
				t.Errorf("a write: %v", err)
			}
			if n := len(cluster.Requests(flusspb.APIPutKv)); n != 1 {
				t.Errorf("the write was sent %d times", n)
			}
			if got := cluster.Bucket(p.Bucket(0)).LogEnd == 1; got != tt.stored {
				t.Errorf("written: %v, want %v", got, tt.stored)
			}
			cluster.Next(flusspb.APILakeTieringHeartbeat, tt.action)
			if _, err := c.Coordinator().Epoch(ctx); !errors.Is(err, client.ErrNoAnswer) {
				t.Errorf("a raw call: %v", err)
			}
		})
	}
}

func TestRefusalsAreTriedAgainOnlyWhenThatMayHelp(t *testing.T) {
	for code, want := range map[client.Code]struct{ read, write bool }{
		client.CodeNotLeaderOrFollower:  {true, true},
		client.CodeUnknownTableOrBucket: {true, true},
		client.CodeLeaderNotAvailable:   {true, true},
		client.CodeNotCoordinatorLeader: {true, true},
		client.CodeBackPressure:         {true, true},
		client.CodeSchemaNotExist:       {false, true},
		client.CodeRequestTimeout:       {true, false},
		client.Code(29):                 {true, false},
		client.CodeAuthorization:        {false, false},
		client.CodeTableNotExist:        {false, false},
		client.CodeUnknownServerError:   {false, false},
		client.Code(999):                {false, false},
	} {
		t.Run(code.String(), func(t *testing.T) {
			cluster := flusstest.Start(t, flusstest.Options{})
			c, ctx := dial(t, cluster), t.Context()
			p := must[client.Physical](t)(makePeople(t, c, 1).Partition(ctx, ""))
			cluster.Next(flusspb.APILookup, flusstest.RefuseWith(code, "no"))
			_, err := c.Lookup(ctx, p, 0, nil)
			check(t, "a look-up", err, code, want.read)
			text := "no"
			cluster.Next(flusspb.APIPutKv, flusstest.AnswerWith(&flusspb.PutKvResponse{BucketsResp: []*flusspb.PutKvResultForBucket{
				{BucketId: proto.Int32(0), ErrorCode: proto.Int32(int32(code)), ErrorMessage: &text},
			}}))
			check(t, "a write", c.PutKV(ctx, p, 0, 1, nil), code, want.write)
			if code == client.CodeNotLeaderOrFollower || code == client.CodeUnknownTableOrBucket {
				return
			}
			cluster.Next(flusspb.APICreateDatabase, flusstest.RefuseWith(code, "no"))
			check(t, "a creation", c.CreateDatabase(ctx, "x", client.Refuse), code, want.write)
		})
	}
}

func check(t *testing.T, what string, err error, code client.Code, again bool) {
	t.Helper()
	switch {
	case again && err != nil:
		t.Errorf("%s was given up: %v", what, err)
	case !again && client.CodeOf(err) != code:
		t.Errorf("%s: %v, want code %d", what, err, code)
	}
}

func TestAnswersMayComeInAnyOrderAndTwice(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c, ctx := dial(t, cluster), t.Context()
	table := makePeople(t, c, 1)
	for id := range int32(100) {
		if err := table.Upsert(ctx, person(id)); err != nil {
			t.Fatal(err)
		}
	}
	gate := make(chan struct{})
	cluster.Next(flusspb.APILookup, flusstest.After(gate), flusstest.AnswerTwice, flusstest.HandleTwice)
	var slow, others sync.WaitGroup
	slow.Go(func() { look(t, table, 0) })
	for len(cluster.Requests(flusspb.APILookup)) == 0 {
		time.Sleep(time.Millisecond)
	}
	for id := int32(1); id < 100; id++ {
		others.Go(func() { look(t, table, id) })
	}
	others.Wait() // while the first one still waits
	close(gate)
	slow.Wait()
}

func look(t *testing.T, table *client.Table, id int32) {
	if got, err := table.Get(t.Context(), person(id)); err != nil || !row.EqualAll(got, person(id)) {
		t.Errorf("row %d: %v, %v", id, got, err)
	}
}

func TestContextsEndCalls(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c := dial(t, cluster)
	p := must[client.Physical](t)(makePeople(t, c, 1).Partition(t.Context(), ""))
	gate := make(chan struct{})
	defer close(gate)

	cluster.Next(flusspb.APILookup, flusstest.After(gate))
	ctx, cancel := context.WithCancel(t.Context())
	cluster.Next(flusspb.APINotifyLeaderAndIsr, flusstest.After(gate))
	go func() {
		for len(cluster.Requests(flusspb.APILookup)) == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := c.Lookup(ctx, p, 0, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	err := c.Tablet(0).NotifyLeaderAndISR(ctx, 0, client.LeaderAndISR{Physical: p})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, client.ErrNoAnswer) {
		t.Errorf("a call past its deadline: %v", err)
	}
	if _, err := c.Lookup(ctx, p, 0, nil); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrNoAnswer) {
		t.Errorf("a call after its deadline: %v", err)
	}
	if _, err := c.Lookup(t.Context(), p, 0, nil); err != nil {
		t.Errorf("a later call: %v", err)
	}
}

func TestCloseEndsCallsInFlight(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c := dial(t, cluster)
	p := must[client.Physical](t)(makePeople(t, c, 1).Partition(t.Context(), ""))
	gate := make(chan struct{})
	defer close(gate)
	cluster.Next(flusspb.APILookup, flusstest.After(gate))
	go func() {
		for len(cluster.Requests(flusspb.APILookup)) == 0 {
			time.Sleep(time.Millisecond)
		}
		c.Close()
	}()
	if _, err := c.Lookup(t.Context(), p, 0, nil); !errors.Is(err, client.ErrClosed) {
		t.Errorf("a call in flight: %v", err)
	}
	for range 2 {
		c.Close()
	}
	if _, err := c.Databases(t.Context()); !errors.Is(err, client.ErrClosed) {
		t.Errorf("a later call: %v", err)
	}
	if _, err := c.Coordinator().Epoch(t.Context()); !errors.Is(err, client.ErrClosed) {
		t.Errorf("a later raw call: %v", err)
	}
}

func TestWhatIsNoFlussIsSaidToBeNone(t *testing.T) {
	http := "HTTP/1.1 400 Bad Request\r\n\r\n"
	versions := flusstest.Start(t, flusstest.Options{})
	for _, tt := range []struct {
		name   string
		answer string
		want   error
	}{
		{"HTTP", http, client.ErrProtocol},
		{"Redis", "-ERR unknown command\r\n", client.ErrProtocol},
		{"TLS", "\x15\x03\x03\x00\x02\x02\x28", client.ErrProtocol},
		{"SSH", "SSH-2.0-OpenSSH_9.2\r\n", client.ErrProtocol},
		{"a frame longer than announced", "\x00\x00\x00\x02\x00\x00\x00\x00\x00\x0a\x00", client.ErrProtocol},
		{"a frame longer than any", "\x7f\xff\xff\xff", client.ErrProtocol},
		{"a negative length", "\xff\xff\xff\xff", client.ErrProtocol},
		{"an unknown kind of response", "\x00\x00\x00\x05\x07\x00\x00\x00\x00", client.ErrProtocol},
		{"an answer to nothing", "\x00\x00\x00\x05\x00\x00\x00\x00\x09", client.ErrProtocol},
		{"a message of another kind", "\x00\x00\x00\x07\x00\x00\x00\x00\x00\xff\xff", client.ErrProtocol},
		{"an end", "", client.ErrUnreachable},
		{"an end inside a frame", "\x00\x00\x00\x05\x00", client.ErrUnreachable},
		{"a server that offers nothing", "\x00\x00\x00\x05\x00\x00\x00\x00\x00", client.ErrUnsupported},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr := listen(t, func(nc net.Conn) {
				var request [256]byte
				nc.Read(request[:])
				nc.Write([]byte(tt.answer))
			})
			_, err := client.Dial(t.Context(), client.Config{Bootstrap: []string{addr}, Timeout: 10 * time.Second})
			if !errors.Is(err, tt.want) || errors.Is(err, client.ErrNoAnswer) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if err == nil || !strings.Contains(err.Error(), addr) {
				t.Errorf("%v does not name the server", err)
			}
			// A good address beside the bad one is enough.
			c, err := client.Dial(t.Context(), client.Config{Bootstrap: append([]string{addr}, versions.Bootstrap()...), Timeout: 10 * time.Second})
			if tt.want == client.ErrUnreachable || tt.want == client.ErrProtocol {
				if err != nil {
					t.Fatalf("with a good address: %v", err)
				}
			}
			if c != nil {
				c.Close()
			}
		})
	}
}

// listen serves each connection by a function that ends it.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer nc.Close(); serve(nc) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func TestAServerThatHangsIsGivenUp(t *testing.T) {
	gate := make(chan struct{})
	addr := listen(t, func(net.Conn) { <-gate })
	t.Cleanup(func() { close(gate) }) // before listen's own
	_, err := client.Dial(t.Context(), client.Config{Bootstrap: []string{addr}, Timeout: 50 * time.Millisecond})
	if !errors.Is(err, client.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	cluster := flusstest.Start(t, flusstest.Options{})
	c, err := client.Dial(t.Context(), client.Config{Bootstrap: append([]string{addr}, cluster.Bootstrap()...), Timeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestAnAnswerCutAtAnyByteIsAnError(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c := dial(t, cluster, impatient)
	if err := c.CreateDatabase(t.Context(), "here", client.Refuse); err != nil {
		t.Fatal(err)
	}
	message := must[[]byte](t)(proto.Marshal(&flusspb.ListDatabasesResponse{DatabaseName: []string{"here"}}))
	var frame []byte
	frame = append(frame, 0, 0, 0, byte(5+len(message)), 0, 0, 0, 0, 0)
	frame = append(frame, message...)
	for n := range frame {
		cluster.Next(flusspb.APILakeTieringHeartbeat, func(x *flusstest.Exchange) {
			flusstest.Raw(frame[:n])(x)
			x.HangUp()
		})
		if _, err := c.Coordinator().Epoch(t.Context()); !errors.Is(err, client.ErrNoAnswer) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
}

func TestRequestsLongerThanAServerTakesAreNotSent(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c := dial(t, cluster, func(cfg *client.Config) { cfg.MaxFrame = 4096 })
	p := must[client.Physical](t)(makePeople(t, c, 1).Partition(t.Context(), ""))
	err := c.PutKV(t.Context(), p, 0, 1, []client.Put{{Key: []byte{1}, Row: make([]byte, 5000)}})
	if !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("%v", err)
	}
	if n := len(cluster.Requests(flusspb.APIPutKv)); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

func TestAnIdleConnectionIsReplacedBeforeTheServerClosesIt(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	handshakes := func(idle time.Duration) int {
		before := len(cluster.Requests(flusspb.APIApiVersions))
		c := dial(t, cluster, func(cfg *client.Config) { cfg.MaxIdle = idle })
		for range 3 {
			if _, err := c.Databases(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return len(cluster.Requests(flusspb.APIApiVersions)) - before
	}
	if n := handshakes(time.Hour); n != 1 {
		t.Errorf("%d connections for calls in a row", n)
	}
	if n := handshakes(1); n != 4 {
		t.Errorf("%d connections for calls after a pause each", n)
	}
}

const canary = "canary-93c1f7"

func TestSASLPlain(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{Users: map[string]string{"ann": canary}})
	cfg := client.Config{Bootstrap: cluster.Bootstrap(), Timeout: 10 * time.Second}
	try := func(p *client.PLAIN) error {
		cfg.SASL = p
		c, err := client.Dial(t.Context(), cfg)
		if err == nil {
			_, err = c.Databases(t.Context())
			c.Close()
		}
		return err
	}
	if err := try(client.Password("ann", canary)); err != nil {
		t.Error(err)
	}
	wantCode(t, "no user", try(nil), client.CodeAuthentication)
	wantCode(t, "another user", try(client.Password("bob", canary)), client.CodeAuthentication)
	err := try(client.Password("ann", canary+"x"))
	wantCode(t, "a wrong password", err, client.CodeAuthentication)
	for _, text := range []string{fmt.Sprint(err), fmt.Sprintf("%+v", cfg), fmt.Sprintf("%#v", cfg.SASL)} {
		if strings.Contains(text, canary) {
			t.Errorf("the password is printed: %s", text)
		}
	}
	cluster.Next(flusspb.APIAuthenticate, flusstest.RefuseWith(client.CodeRetriableAuthentication, "later"))
	if err := try(client.Password("ann", canary)); err != nil {
		t.Errorf("after a passing refusal: %v", err)
	}
	cluster.Next(flusspb.APIAuthenticate, flusstest.AnswerWith(&flusspb.AuthenticateResponse{Challenge: []byte("more")}))
	if err := try(client.Password("ann", canary)); !errors.Is(err, client.ErrProtocol) {
		t.Errorf("a challenge: %v", err)
	}
	if err := try(&client.PLAIN{User: "ann"}); err == nil {
		t.Error("a user without password is taken")
	}
	if err := try(client.Password("ann", "a\x00b")); err == nil {
		t.Error("a password with NUL is sent")
	}
}

func TestReleasesAreRecognisedAndOlderOnesRefused(t *testing.T) {
	for _, release := range []client.Release{client.Release08, client.Release09, client.ReleaseMain} {
		cluster := flusstest.Start(t, flusstest.Options{Release: release})
		for _, boot := range []int32{flusstest.Coordinator, 0} {
			c := dial(t, cluster, func(cfg *client.Config) { cfg.Bootstrap = []string{cluster.Address(boot)} })
			if got := must[client.Release](t)(c.Release(t.Context())); got != release {
				t.Errorf("coordinator of %v: %v", release, got)
			}
			if got := must[client.Release](t)(c.Tablet(0).Release(t.Context())); got != release {
				t.Errorf("tablet server of %v: %v", release, got)
			}
		}
	}
	old := flusstest.Start(t, flusstest.Options{Outdated: true})
	for _, boot := range []int32{flusstest.Coordinator, 0} {
		_, err := client.Dial(t.Context(), client.Config{Bootstrap: []string{old.Address(boot)}})
		if !errors.Is(err, client.ErrUnsupported) {
			t.Errorf("a cluster of 0.7: %v", err)
		}
	}
}

func TestCallsThatAReleaseLacksFailAtOnceAndAreNotSent(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{Release: client.Release08})
	c, ctx := dial(t, cluster), t.Context()
	p := must[client.Physical](t)(makePeople(t, c, 1).Partition(ctx, ""))
	cluster.SetLakeSnapshots(people, flusstest.LakeSnapshot{ID: 1})
	for name, call := range map[string]func() error{
		"TableStats":             func() error { _, err := c.TableStats(ctx, p, 0); return err },
		"DropLease":              func() error { return c.DropLease(ctx, "l") },
		"RegisteredKVSnapshots":  func() error { _, err := c.RegisteredKVSnapshots(ctx, p); return err },
		"AddServerTag":           func() error { return c.Coordinator().AddServerTag(ctx, client.TemporaryOffline, 0) },
		"Rebalance":              func() error { _, err := c.Coordinator().Rebalance(ctx); return err },
		"a lake snapshot by id":  func() error { _, err := c.LakeSnapshot(ctx, people, 7); return err },
		"the readable lake snap": func() error { _, err := c.ReadableLakeSnapshot(ctx, people); return err },
	} {
		if err := call(); !errors.Is(err, client.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := must[client.LakeSnapshot](t)(c.LatestLakeSnapshot(ctx, people)); s.SnapshotID != 1 {
		t.Errorf("%+v", s)
	}
	if n := len(cluster.Requests(flusspb.APIGetLakeSnapshot)); n != 1 {
		t.Errorf("%d lake snapshots were asked for", n)
	}
}

func TestLakeSnapshotsAreSelected(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c, ctx := dial(t, cluster), t.Context()
	makePeople(t, c, 2)
	_, err := c.LatestLakeSnapshot(ctx, people)
	wantCode(t, "none", err, client.CodeLakeSnapshotNotExist)
	cluster.SetLakeSnapshots(people,
		flusstest.LakeSnapshot{ID: 1, Readable: true, Offsets: []client.LakeOffset{{Bucket: 0, LogOffset: 4}}},
		flusstest.LakeSnapshot{ID: 2, Offsets: []client.LakeOffset{{Bucket: 0, LogOffset: 8}, {Bucket: 1, LogOffset: 3}}})
	if s := must[client.LakeSnapshot](t)(c.LatestLakeSnapshot(ctx, people)); s.SnapshotID != 2 || len(s.Buckets) != 2 {
		t.Errorf("latest: %+v", s)
	}
	if s := must[client.LakeSnapshot](t)(c.LakeSnapshot(ctx, people, 1)); s.SnapshotID != 1 || s.Buckets[0].LogOffset != 4 {
		t.Errorf("by id: %+v", s)
	}
	if s := must[client.LakeSnapshot](t)(c.ReadableLakeSnapshot(ctx, people)); s.SnapshotID != 1 {
		t.Errorf("readable: %+v", s)
	}
	_, err = c.LakeSnapshot(ctx, people, 9)
	wantCode(t, "another id", err, client.CodeLakeSnapshotNotExist)
}

func TestLeasesAreHeldRenewedAndGivenUp(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c, ctx := dial(t, cluster), t.Context()
	p := must[client.Physical](t)(makePeople(t, c, 3).Partition(ctx, ""))
	var refs []client.SnapshotRef
	for b := range int32(3) {
		refs = append(refs, client.SnapshotRef{Bucket: p.Bucket(b), SnapshotID: int64(b)})
	}
	for range 2 {
		if rest := must[[]client.SnapshotRef](t)(c.AcquireLease(ctx, "scan", time.Minute, refs)); rest != nil {
			t.Errorf("not leased: %v", rest)
		}
	}
	if err := c.ReleaseLease(ctx, "scan", []client.TableBucket{p.Bucket(1)}); err != nil {
		t.Fatal(err)
	}
	if got := cluster.Leases(); got["scan"] != 2 {
		t.Errorf("leases %v", got)
	}
	if err := c.DropLease(ctx, "scan"); err != nil {
		t.Fatal(err)
	}
	if got := cluster.Leases(); len(got) != 0 {
		t.Errorf("leases %v", got)
	}
	cluster.Next(flusspb.APIAcquireKvSnapshotLease, flusstest.AnswerWith(&flusspb.AcquireKvSnapshotLeaseResponse{UnavailableSnapshots: []*flusspb.LeasedTable{
		{TableId: &p.TableID, BucketSnapshots: []*flusspb.LeasedBucket{{BucketId: proto.Int32(2), SnapshotId: proto.Int64(2)}}},
	}}))
	if rest := must[[]client.SnapshotRef](t)(c.AcquireLease(ctx, "scan", time.Minute, refs)); len(rest) != 1 || rest[0] != refs[2] {
		t.Errorf("not leased: %v", rest)
	}
	if _, err := c.AcquireLease(ctx, "scan", 0, refs); err == nil {
		t.Error("a lease of no time is taken")
	}
}

func TestAccessRulesAreListedAddedAndDropped(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{Authorizer: true})
	c, ctx := dial(t, cluster), t.Context()
	write := client.ACL{ResourceName: "fluss.people", Resource: client.TableResource, PrincipalName: "ann", PrincipalType: "User", Host: "*", Operation: client.OpWrite, Permission: client.Allow}
	read := write
	read.Operation = client.OpRead
	if err := c.CreateACLs(ctx, write, read); err != nil {
		t.Fatal(err)
	}
	all := client.ACLFilter{Resource: client.AnyResource, Operation: client.AnyOperation, Permission: client.AnyPermission}
	if got := must[[]client.ACL](t)(c.ACLs(ctx, all)); len(got) != 2 {
		t.Errorf("%v", got)
	}
	if got := must[[]client.ACL](t)(c.DropACLs(ctx, write.Exactly())); len(got) != 1 || got[0] != write {
		t.Errorf("dropped %v", got)
	}
	if got := must[[]client.ACL](t)(c.ACLs(ctx, all)); len(got) != 1 || got[0] != read {
		t.Errorf("%v", got)
	}
	text := "no"
	cluster.Handle(flusspb.APICreateAcls, func(r *flusstest.Request) (proto.Message, error) {
		resp := &flusspb.CreateAclsResponse{}
		for _, a := range r.Message.(*flusspb.CreateAclsRequest).GetAcl() {
			resp.AclRes = append(resp.AclRes, &flusspb.CreateAclResult{Acl: a, ErrorCode: proto.Int32(48), ErrorMessage: &text})
		}
		return resp, nil
	})
	wantCode(t, "a rule that is refused", c.CreateACLs(ctx, write), client.CodeAuthorization)
}

// TestABucketAdoptsASnapshotOnEveryRelease takes the steps of a publication in place.
func TestABucketAdoptsASnapshotOnEveryRelease(t *testing.T) {
	for _, release := range []client.Release{client.Release08, client.Release09, client.ReleaseMain} {
		t.Run(release.String(), func(t *testing.T) {
			key, value := []byte{1}, []byte{1, 0, 0, 1, 2, 'p', '1'}
			cluster := flusstest.Start(t, flusstest.Options{Release: release, Tablets: 2, Restore: func(*snapshot.Metadata) (map[string][]byte, error) {
				return map[string][]byte{string(key): value}, nil
			}})
			c, ctx := dial(t, cluster), t.Context()
			p := must[client.Physical](t)(makePeople(t, c, 1).Partition(ctx, ""))
			bucket := p.Bucket(0)
			if release == client.ReleaseMain {
				cluster.SetCoordinatorEpoch(4)
			}
			cluster.SetBucketEpoch(bucket, 2)
			truth := cluster.Bucket(bucket)
			epoch := must[int32](t)(c.Coordinator().Epoch(ctx))
			if be := findBucketEpoch(t, c, bucket, truth.LeaderEpoch, epoch, release); be != 2 {
				t.Fatalf("bucket epoch %d", be)
			}
			leader := c.Tablet(truth.Leader)
			notify := client.LeaderAndISR{Physical: p, Leader: truth.Leader, LeaderEpoch: truth.LeaderEpoch, BucketEpoch: 2, Replicas: truth.Replicas, ISR: truth.Replicas, Standby: truth.Standby}
			metadata := []byte(fmt.Sprintf(`{"version":1,"table_id":%d,"bucket_id":0,"snapshot_id":0,"snapshot_location":"file:///x",
				"kv_snapshot_handle":{"shared_file_handles":[],"private_file_handles":[],"snapshot_incremental_size":0},"log_offset":0,"row_count":1}`, p.TableID))

			if err := leader.StopReplica(ctx, epoch, bucket, truth.LeaderEpoch, client.DeleteLocal); err != nil {
				t.Fatal(err)
			}
			_, err := leader.LogEnd(ctx, p, 0)
			wantCode(t, "a stopped bucket", err, client.CodeNotLeaderOrFollower)
			if err := c.Coordinator().CommitKVSnapshot(ctx, metadata, epoch, truth.LeaderEpoch); err != nil {
				t.Fatal(err)
			}
			if err := leader.NotifyLeaderAndISR(ctx, epoch, notify); err != nil {
				t.Fatal(err)
			}
			if got := must[[][]byte](t)(c.Lookup(ctx, p, 0, [][]byte{key, {9}})); !bytes.Equal(got[0], value) || got[1] != nil {
				t.Errorf("%v", got)
			}
			if got := must[[][]byte](t)(leader.LimitScan(ctx, p, 0, 10)); len(got) != 1 {
				t.Errorf("%v", got)
			}
			s := must[client.KVSnapshots](t)(c.LatestKVSnapshots(ctx, people, ""))
			if !s.Buckets[0].Exists || s.Buckets[0].ID != 0 {
				t.Errorf("%+v", s)
			}
			if got := cluster.Bucket(bucket); !got.Running || fmt.Sprint(got.Standby) != fmt.Sprint(truth.Standby) {
				t.Errorf("%+v", got)
			}
			if release == client.ReleaseMain {
				wantCode(t, "a stop by an old coordinator", leader.StopReplica(ctx, epoch-1, bucket, 0, client.DeleteLocal), client.CodeInvalidCoordinator)
				if got := must[[]client.BucketSnapshot](t)(c.RegisteredKVSnapshots(ctx, p)); len(got) != 1 {
					t.Errorf("%v", got)
				}
			}
			// The second commit destroys the first.
			if err := c.Coordinator().CommitKVSnapshot(ctx, metadata, epoch, truth.LeaderEpoch); err == nil {
				t.Error("a second commit succeeded")
			}
			_, err = c.KVSnapshotMetadata(ctx, bucket, 0)
			wantCode(t, "a snapshot committed twice", err, client.CodeKVSnapshotNotExist)
		})
	}
}

func TestAStandbyCoordinatorIsPassedOver(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{Release: client.ReleaseMain})
	c, ctx := dial(t, cluster, func(cfg *client.Config) { cfg.Bootstrap = append(cfg.Bootstrap, cluster.Address(0)) }), t.Context()
	refuse := flusstest.RefuseWith(client.CodeNotCoordinatorLeader, "standby")
	cluster.Next(flusspb.APICreateDatabase, refuse, refuse)
	if err := c.CreateDatabase(ctx, "a", client.Refuse); err != nil {
		t.Error(err)
	}
	cluster.Next(flusspb.APILakeTieringHeartbeat, refuse)
	if _, err := c.Coordinator().Epoch(ctx); err != nil {
		t.Error(err)
	}
	cluster.Next(flusspb.APIListDatabases, refuse)
	if _, err := c.Databases(ctx); err != nil {
		t.Error(err)
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	for name, cfg := range map[string]client.Config{
		"no address":           {},
		"an address sans port": {Bootstrap: []string{"localhost"}},
		"a negative time-out":  {Bootstrap: []string{"localhost:1"}, Timeout: -1},
	} {
		if _, err := client.Dial(t.Context(), cfg); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if _, err := client.ParseTablePath("nodot"); err == nil {
		t.Error("a path without database is taken")
	}
	if p, err := client.ParseTablePath("db.t"); err != nil || p.String() != "db.t" {
		t.Errorf("%v, %v", p, err)
	}
	if _, err := client.ParseTablePath("db.t.u"); err == nil {
		t.Error("a path with three parts is taken")
	}
}
