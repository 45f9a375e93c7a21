package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apiclient "github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
)

// The verbs of a load.
const (
	begin  = "begin"
	commit = "commit"
	abort  = "abort"
)

// step is a place between two steps of a verb, where a broker stands still or dies.
type step struct{ verb, point string }

// steps are in the order in which a load passes them; those of a bucket are passed by
// each of them.
var steps = []step{
	{begin, "begin.reserved"}, {begin, "fluss.fenced"}, {begin, "fluss.proved"}, {begin, "begin.fenced"}, {begin, "begin.ready"},
	{commit, "commit.frozen"}, {commit, "commit.validated"}, {commit, "commit.fence-decided"}, {commit, "commit.decided"},
	{commit, "fluss.STOPPING"}, {commit, "fluss.stopped"}, {commit, "fluss.COMMITTING"}, {commit, "fluss.committed"},
	{commit, "fluss.NOTIFYING"}, {commit, "fluss.told"}, {commit, "fluss.SERVED"}, {commit, "fluss.SERVED:3"},
	{commit, "commit.published"}, {commit, "commit.recorded"},
	{abort, "abort.recorded"}, {abort, "abort.fence"},
}

// inPlace are points that a birth does not pass.
var inPlace = []string{"fluss.STOPPING", "fluss.stopped", "fluss.COMMITTING", "fluss.committed", "fluss.told"}

// event is what happens to the cluster while a broker is at a step.
type event struct {
	name     string
	replicas int
	// strike makes it happen and returns what makes it good again. That is done when the
	// broker has gone on.
	strike func(r *round) (heal func())
}

var events = []event{
	{"nothing", 1, func(*round) func() { return func() {} }},
	{"the coordinator is killed", 1, func(r *round) func() { return r.killed(env.Coordinator, 0) }},
	{"the only replica's tablet server is killed", 1, func(r *round) func() { return r.killed(env.TabletServer, r.leader(r.table, 0)) }},
	{"the leader is killed", 3, func(r *round) func() { return r.killed(env.TabletServer, r.leader(r.table, 0)) }},
	{"ZooKeeper is killed", 1, func(r *round) func() { return r.killed(env.ZooKeeper, 0) }},
	{"the leader is moved", 3, (*round).leaderMoved},
	{"the replica is reassigned", 1, (*round).reassigned},
	{"the table is dropped", 1, (*round).dropped},
	{"the table is altered", 3, (*round).altered},
	{"somebody writes", 1, (*round).written},
	{"somebody writes to replicas", 3, (*round).written},
}

// round is one load with one event.
type round struct {
	*world
	table table
	step  step
	bc    *builder.BuildContext // nil until Begin has succeeded

	gone    bool // the table was dropped
	foreign bool // somebody's row was acknowledged
}

const (
	roundRows  = 200
	foreignRow = roundRows + 5
)

func (r *round) killed(role env.Role, n int) func() {
	r.must(r.fluss.Kill(role, n))
	r.Cleanup(func() { // a round that fails leaves the cluster whole
		if r.fluss.PID(role, n) == 0 {
			r.must(r.fluss.Restart(context.Background(), role, n))
		}
	})
	return func() { r.must(r.fluss.Restart(r.Context(), role, n)) }
}

func (r *round) leaderMoved() func() {
	if !r.there() {
		return func() {}
	}
	from := r.leader(r.table, 0)
	r.must(r.judge.MoveLeaders(r.Context(), from))
	return func() { r.must(r.judge.AllowLeaders(r.Context(), from)) }
}

// there reports whether what is loaded exists: a partition may not be born yet.
func (r *round) there() bool {
	_, err := r.judge.Locations(r.Context(), r.table.oracle())
	return err == nil
}

// reassigned has the cluster give the replicas of a server to others, which it does by
// copying: with one replica the rows must survive that, too.
func (r *round) reassigned() func() {
	c, err := client.Dial(r.Context(), client.Config{Bootstrap: []string{r.fluss.Bootstrap()}})
	r.must(err)
	defer c.Close()
	from := int32(0)
	if r.there() {
		from = int32(r.leader(r.table, 0))
	}
	r.must(c.Coordinator().AddServerTag(r.Context(), client.PermanentOffline, from))
	if _, err := c.Coordinator().Rebalance(r.Context(), client.BalanceReplicas); err != nil {
		r.Log("rebalance: ", err)
	}
	return func() {
		c, err := client.Dial(r.Context(), client.Config{Bootstrap: []string{r.fluss.Bootstrap()}})
		r.must(err)
		defer c.Close()
		r.must(c.Coordinator().RemoveServerTag(r.Context(), client.PermanentOffline, from))
	}
}

func (r *round) dropped() func() {
	r.gone = true
	r.drop(r.table)
	return func() {}
}

func (r *round) altered() func() {
	_, err := r.judge.AddColumns(r.Context(), r.table.whole(), flussoracle.Column{Name: "extra", Type: "STRING"})
	r.must(err)
	return func() {}
}

// written upserts a row. While its bucket is away the writer waits, and so does heal.
func (r *round) written() func() {
	if !r.there() {
		return func() {}
	}
	done := make(chan error, 1)
	go func() {
		done <- r.judge.Upsert(r.Context(), r.table.whole(), flussoracle.Row(jsonRow(foreignRow, "foreign")))
	}()
	select {
	case err := <-done:
		r.must(err)
		r.foreign = true
		return func() {}
	case <-time.After(time.Second): // its bucket is stopped
	}
	return func() {
		select {
		case err := <-done:
			r.must(err)
			r.foreign = true
		case <-time.After(patience):
			r.must(errors.New("the writer still waits: its bucket does not come back"))
		}
	}
}

// way is what happens to the broker at the step.
type way string

const (
	goesOn    way = "the broker goes on"
	takenOver way = "the broker is killed and another takes over"
)

// TestALoadIsWholeOrRefused has one event at one step each. A load ends COMMITTED, and
// then all its rows are served beside what others wrote; or it is refused, and then the
// target holds what others wrote and nothing else, and can be loaded.
func TestALoadIsWholeOrRefused(t *testing.T) {
	w := newWorld(t)
	for _, c := range cases() {
		w.Run(c.String(), func(t *testing.T) { w.in(t).round(c) })
	}
}

type trial struct {
	step
	event
	way
	birth bool
}

func (c trial) String() string {
	how := "in place"
	if c.birth {
		how = "birth"
	}
	return fmt.Sprintf("%s, at %s, %s, %s", how, c.point, c.event.name, c.way)
}

// cases of the full run are all events at all steps, the quick ones with both ways, by
// birth with one; the ordinary run has each step once with a quick event, and each of
// the slow ones where it hurts most.
func cases() (all []trial) {
	for i, s := range steps {
		for j, e := range events {
			for k, way := range []way{goesOn, takenOver} {
				for l, birth := range []bool{false, true} {
					at, _, _ := strings.Cut(s.point, ":")
					if birth && slices.Contains(inPlace, at) {
						continue
					}
					once := k == (i+j)%2
					_, slow := slowest[e.name]
					if full() && (once && !(birth && slow) || !slow && !birth) || !full() && ordinary(s, e, i, j, k, l) {
						all = append(all, trial{s, e, way, birth})
					}
				}
			}
		}
	}
	return all
}

// slowest are the events that take a ZooKeeper session, and where they hurt most.
var slowest = map[string]string{
	"the coordinator is killed": "fluss.committed", "the only replica's tablet server is killed": "fluss.stopped",
	"the leader is killed": "fluss.NOTIFYING", "ZooKeeper is killed": "fluss.COMMITTING", "the replica is reassigned": "commit.decided",
}

func ordinary(s step, e event, i, j, k, l int) bool {
	if at, slow := slowest[e.name]; slow {
		return s.point == at && k == 0 && l == 0
	}
	quick := []int{0, 5, 7, 8, 9}
	return j == quick[i%len(quick)] && k == i%2 && l == i/2%2
}

func (w *world) round(c trial) {
	t := table{replicas: c.replicas}
	if c.birth {
		t.partition, t.Partition = true, "x"
	}
	r := &round{world: w, table: w.create(t), step: c.step}
	variable := durable.PauseVar
	if c.way == takenOver {
		variable = durable.CrashVar
	}
	r.start(variable + "=" + c.point)
	defer r.start()
	outcome := r.run(c)
	r.Log(c, ": ", outcome)
	r.judgeIt(outcome)
}

// outcome of a load: committed, or what refused it.
type outcome struct {
	state string
	err   error
}

func (o outcome) String() string { return fmt.Sprintf("%s %v", o.state, o.err) }

// run is the load, with the event at its step.
func (r *round) run(c trial) outcome {
	id := fmt.Sprint("r", submissions.Add(1))
	err := r.verb(begin, c, func(ctx context.Context) (err error) {
		r.bc, err = r.as("loader").Begin(ctx, builder.BeginRequest{Target: r.table.Target, SubmissionID: id})
		return err
	})
	if err != nil {
		return outcome{"REFUSED", err}
	}
	files := r.build(r.bc, roundRows)
	var s *v1.Session
	do, verb := (*builder.Client).Abort, abort
	if c.verb != abort {
		verb, do = commit, func(b *builder.Client, ctx context.Context, bc *builder.BuildContext) (*v1.Session, error) {
			return b.Commit(ctx, bc, files)
		}
	}
	err = r.verb(verb, c, func(ctx context.Context) (err error) {
		s, err = do(r.as("loader"), ctx, r.bc)
		return err
	})
	if s == nil {
		if s, _ = r.as("loader").Status(r.Context(), r.bc); s == nil {
			s = &v1.Session{State: "UNKNOWN"}
		}
	}
	return outcome{s.State, err}
}

// verb does a verb of the load, and the event where it is this one's.
func (r *round) verb(verb string, c trial, do func(context.Context) error) error {
	if verb != c.verb {
		return r.insist(do)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	if c.way == takenOver {
		select {
		case <-r.broker.Exited():
		case <-time.After(patience):
			r.must(fmt.Errorf("the broker does not die at %s", c.point))
		}
		cancel()
		<-done
		heal := c.strike(r)
		err := r.tryStart()
		heal()
		if err != nil {
			r.start()
		}
		return r.insist(do)
	}
	r.eventually("the broker to stop at "+c.point, func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.broker.PID()))
		if _, rest, ok := strings.Cut(string(b), ") "); err == nil && ok && rest[0] != 'T' {
			err = fmt.Errorf("it is %c", rest[0])
		}
		return err
	})
	heal := c.strike(r)
	r.must(resume(r.broker.PID()))
	heal()
	if err := <-done; err == nil {
		return nil
	}
	return r.insist(do)
}

// insist repeats a verb until it is answered for good, as a load's client would. A fault
// on the broker's side that comes again and again is an answer, too.
func (w *world) insist(do func(context.Context) error) error {
	faults := 0
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(w.Context(), 25*time.Second)
		err := do(ctx)
		cancel()
		var answered *apiclient.Error
		if errors.As(err, &answered) && answered.StatusCode == http.StatusInternalServerError {
			faults++
		}
		if final(err) || faults == maxFaults || time.Now().After(deadline) {
			return err
		}
	}
}

const maxFaults = 10

// final reports whether repeating a verb makes no difference.
func final(err error) bool {
	var ended *builder.EndedError
	var answered *apiclient.Error
	return err == nil || errors.As(err, &ended) || errors.As(err, &answered) && answered.StatusCode/100 == 4
}

// judgeIt compares what a load's outcome promises with what the table holds.
func (r *round) judgeIt(o outcome) {
	want := rows{}
	if r.foreign {
		want[foreignRow] = sorted(jsonRow(foreignRow, "foreign"))
	}
	if o.state == "COMMITTED" {
		if r.gone {
			return // it was dropped with its rows
		}
		for id, text := range loaded(roundRows) {
			want[id] = text
		}
		r.holds(r.table, want)
		r.upsert(r.table, want, "afterwards", 1, roundRows+1)
		r.holds(r.table, want)
		return
	}
	if o.state == "ABORTED" && r.step.verb == abort {
		if o.err != nil {
			r.Errorf("the abort failed: %v", o.err)
		}
	} else if !r.gone && !r.foreign {
		r.must(fmt.Errorf("the load was refused: %v", o))
	} else if !r.clear(o) {
		r.must(fmt.Errorf("this says not what is wrong: %v", o))
	}
	if o.state == "COMMITTING" {
		r.stopped(want)
		return
	}
	switch {
	case r.gone:
		r.createAgain(r.table)
		want = rows{}
	case r.there():
		r.holds(r.table, want)
	}
	if len(want) == 0 {
		r.load(r.table, roundRows)
		r.holds(r.table, loaded(roundRows))
	}
}

// stopped is for a publication that cannot go on: what others wrote is there, and the
// rows beside it are the load's. Nothing is taken back from a bucket that serves it.
func (r *round) stopped(foreign rows) {
	if r.gone {
		return
	}
	found, err := r.judge.Read(r.Context(), flussoracle.LimitScan, r.table.oracle())
	r.must(err)
	all, got := loaded(roundRows), rows{}
	maps.Copy(all, foreign)
	for _, f := range found {
		id, text, err := canonical(f.Row)
		r.must(err)
		if got[id] = text; all[id] != text {
			r.Errorf("row %s is neither the load's nor the other writer's", text)
		}
	}
	for id := range foreign {
		if got[id] == "" {
			r.Errorf("the other writer's row %d is gone", id)
		}
	}
	r.ends()
}

// ends drops the table of a stuck load, which ends with it. Else every later broker would
// carry it on, and could come to its step with the wrong load.
func (r *round) ends() {
	r.drop(r.table)
	err := r.insist(func(ctx context.Context) error {
		_, err := r.as("loader").API().Commit(ctx, r.bc.Handle.BulkLoadID, v1.CommitRequest{Epoch: r.bc.Epoch})
		return err
	})
	var answered *apiclient.Error
	if !errors.As(err, &answered) || answered.Problem.Code != v1.CodeSessionEnded {
		r.Errorf("a stuck load whose table was dropped does not end: %v", err)
	}
}

// clear reports whether a refusal names its reason, in the answer or, where that points
// to the broker's log, there.
func (r *round) clear(o outcome) bool {
	if o.err == nil {
		return false
	}
	text := o.err.Error()
	if _, id, ok := strings.Cut(text, "the log has the cause under this request id (request "); ok {
		for line := range strings.Lines(r.broker.Log()) {
			if strings.Contains(line, strings.TrimSuffix(id, ")")) {
				text += line
			}
		}
	}
	for _, reason := range []string{"not empty", "NOT_EMPTY", "GONE", "not found", "not_found", "rows that are not the load's", "_METADATA is missing"} {
		if strings.Contains(text, reason) {
			return true
		}
	}
	return false
}

// TestABrokerKilledAtAnyInstantIsReplaced kills up to six brokers a load, at random
// instants of a commit instead of named ones. More would only keep the load from what
// it must wait for: a commit that nobody answered may be under way for half a minute.
func TestABrokerKilledAtAnyInstantIsReplaced(t *testing.T) {
	needFull(t)
	w := newWorld(t)
	for n := range 25 {
		t := table{replicas: 1 + n%2*2}
		if n%3 == 0 {
			t.partition, t.Partition = true, "x"
		}
		r := &round{world: w, table: w.create(t)}
		bc, err := w.begin(r.table)
		w.must(err)
		files, kills := w.build(bc, roundRows), 0
		for begun := time.Now(); ; {
			ctx, cancel := context.WithCancel(w.Context())
			done := make(chan error, 1)
			c := w.as("loader")
			go func() { _, err := c.Commit(ctx, bc, files); done <- err }()
			var kill <-chan time.Time
			if kills < 6 {
				kill = time.After(rand.N(400 * time.Millisecond))
			}
			select {
			case err = <-done:
			case <-kill:
				w.broker.Kill()
				cancel()
				err = <-done
				kills++
			}
			cancel()
			if err == nil {
				break
			}
			if time.Since(begun) > 2*patience {
				w.must(err)
			}
			w.start()
		}
		w.Logf("%s: %d brokers were killed", r.table.Target, kills)
		w.holds(r.table, loaded(roundRows))
	}
}
