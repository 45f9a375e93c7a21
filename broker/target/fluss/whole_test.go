package fluss

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/session"
)

// describedSession is one of a table that does not exist and that the load describes.
func describedSession(t testing.TB, table *schema.Table, epoch int64, missing session.Missing) session.Session {
	t.Helper()
	s := newSession(session.Target{Database: "fluss", Table: fmt.Sprintf("whole_%d", time.Now().UnixNano())}, epoch)
	s.Options = session.Options{Publication: string(InPlace), Missing: missing, TableJSON: string(table.AppendJSON(nil))}
	return s
}

// loaded takes a session through to its end.
func loaded(t testing.TB, c Config, s session.Session, n int) session.Session {
	t.Helper()
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Resolve(t.Context(), s.Target, s.Options); err != nil {
		t.Fatal(err)
	}
	if s, err = begin(t.Context(), d, s); err != nil {
		t.Fatal(err)
	}
	build(t, c.Objects, d, s, n)
	if err := d.Decide(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := d.Publish(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return s
}

func (l *live) drops(t *testing.T, s session.Session) {
	t.Cleanup(func() {
		if err := l.client.DropTable(context.Background(), pathOf(s.Target), client.Ignore); err != nil {
			t.Errorf("drop %s: %v", s.Target, err)
		}
	})
}

func TestLiveBirthOfATable(t *testing.T) {
	l := openLive(t, nil)
	s := describedSession(t, newTable(t, 3, false, map[string]string{"table.replication.factor": "1"}), 1, session.MissingBirth)
	s.Options.Visibility = session.VisibilityAtomic
	l.drops(t, s)
	s = loaded(t, l.config, s, 2000)
	if s.Plan.Publication != string(Birth) || s.Plan.Visibility != session.VisibilityAtomic {
		t.Errorf("%+v", s.Plan)
	}
	sameRows(t, l.client, pathOf(s.Target), "", 2000)
	l.later(t, s.Target, 2000)
	if err := l.driver.Publish(t.Context(), s); err != nil {
		t.Errorf("published again: %v", err)
	}
	names, err := l.client.Tables(t.Context(), "fluss")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if n == scratchPath(s).Table {
			t.Errorf("the template %s is left", n)
		}
	}
	if err := l.client.DropTable(t.Context(), pathOf(s.Target), client.Refuse); err != nil {
		t.Error(err)
	}
}

func TestLiveAnEmptyTargetIsReplaced(t *testing.T) {
	l := openLive(t, nil)
	for _, partitioned := range []bool{false, true} {
		tg := l.table(t, newTable(t, 2, partitioned, nil))
		if partitioned {
			tg.Partition = "north"
			info, err := l.client.TableInfo(t.Context(), pathOf(tg))
			if err != nil {
				t.Fatal(err)
			}
			if err := l.client.CreatePartition(t.Context(), info, "north", client.Refuse); err != nil {
				t.Fatal(err)
			}
		}
		s := newSession(tg, 1)
		s.Options = session.Options{Publication: string(InPlace), ReplaceEmpty: true, Visibility: session.VisibilityAtomic}
		before, err := l.client.Resolve(t.Context(), pathOf(tg), tg.Partition)
		if err != nil {
			t.Fatal(err)
		}
		s = loaded(t, l.config, s, 1000)
		after, err := l.client.Resolve(t.Context(), pathOf(tg), tg.Partition)
		if err != nil || after.TableID == before.TableID && same(after.PartitionID, before.PartitionID) {
			t.Errorf("%+v is as before, %v", after, err)
		}
		sameRows(t, l.client, pathOf(tg), tg.Partition, 1000)
		l.later(t, tg, 1000)
		if _, err := begin(t.Context(), l.driver, newSession(tg, 2)); !errors.Is(err, session.ErrTargetNotEmpty) {
			t.Errorf("a second load: %v", err)
		}
	}
}

func TestLiveAMissingTableIsCreated(t *testing.T) {
	l := openLive(t, nil)
	for _, partitioned := range []bool{false, true} {
		s := describedSession(t, newTable(t, 2, partitioned, nil), 1, session.MissingCreate)
		if partitioned {
			s.Target.Partition = "north"
			s.Options.Missing = session.MissingBirth
		}
		s.Options.RemoveCreated = true
		l.drops(t, s)
		given, err := begin(t.Context(), l.driver, s)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.driver.Abort(t.Context(), given); err != nil {
			t.Fatal(err)
		}
		if _, err := l.client.TableInfo(t.Context(), pathOf(s.Target)); client.CodeOf(err) != client.CodeTableNotExist {
			t.Errorf("after the abort: %v", err)
		}
		s.Epoch, s.ID = 2, newSession(s.Target, 2).ID
		s = loaded(t, l.config, s, 500)
		sameRows(t, l.client, pathOf(s.Target), s.Target.Partition, 500)
	}
}
