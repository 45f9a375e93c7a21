package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// copiedFile holds the name of the last segment that was copied. When it is lost, the
// copies are compared again.
const copiedFile = "copied"

// keeper ends old segments, copies what has ended and deletes what is over.
func (l *Log) keeper(ctx context.Context) {
	ticker := time.NewTicker(min(tendEvery, l.c.MaxAge))
	defer ticker.Stop()
	for {
		if err := l.tend(ctx); err != nil && ctx.Err() == nil {
			l.c.Logger.Error("decision log: keeping segments; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-l.kick:
		case <-ticker.C:
		}
	}
}

// tend does what is due. Every step may be repeated.
func (l *Log) tend(ctx context.Context) error {
	err := l.endOld()
	if l.c.Copy != nil {
		err = errors.Join(err, l.counted(l.copyEnded(ctx)))
	}
	return errors.Join(err, l.counted(l.retire()))
}

func (l *Log) counted(err error) error {
	if err != nil {
		l.mu.Lock()
		l.stats.Failed++
		l.mu.Unlock()
	}
	return err
}

// endOld ends the active segment when its time has come and nobody writes.
func (l *Log) endOld() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.active; l.closed || a == nil || a.events == 0 || l.c.Now().Sub(a.begun) < l.c.MaxAge {
		return nil
	}
	if err := l.ready(); err != nil {
		return err
	}
	return l.rotate()
}

// copyEnded copies the ended segments that were not yet, in their order.
func (l *Log) copyEnded(ctx context.Context) error {
	for {
		l.mu.Lock()
		i := slices.IndexFunc(l.old, func(o ended) bool { return !o.copied })
		var name string
		if i >= 0 {
			name = l.old[i].File
		}
		l.mu.Unlock()
		if i < 0 {
			return nil
		}
		if err := l.copySegment(ctx, name); err != nil {
			return fmt.Errorf("copy %s: %w", name, err)
		}
		durable.Point("audit.copied")
		if err := l.fs.replace(copiedFile, []byte(name+"\n")); err != nil {
			return err
		}
		l.mu.Lock()
		if i = slices.IndexFunc(l.old, func(o ended) bool { return o.File == name }); i >= 0 {
			l.old[i].copied = true
		}
		l.stats.Copied++
		l.mu.Unlock()
	}
}

// copySegment copies a segment, or finds that its copy is there.
func (l *Log) copySegment(ctx context.Context, name string) error {
	size, sum, err := l.measure(name)
	if err != nil {
		return err
	}
	f, err := l.fs.open(name)
	if err != nil {
		return err
	}
	_, err = l.c.Copy.Put(ctx, name, f, objstore.PutOptions{Size: size, HasSize: true, SHA256: sum})
	if err = errors.Join(err, f.Close()); err == nil || !errors.Is(err, objstore.ErrExists) {
		return err
	}
	body, _, err := l.c.Copy.Get(ctx, name, 0, -1)
	if err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(body, size+1))
	if err = errors.Join(err, body.Close()); err != nil {
		return err
	}
	if n != size || hex.EncodeToString(h.Sum(nil)) != sum {
		return errors.New("an object of that name is there and is another: give every broker a place of its own, and compare the two")
	}
	return nil
}

func (l *Log) measure(name string) (size int64, sum string, err error) {
	f, err := l.fs.open(name)
	if err != nil {
		return 0, "", err
	}
	h := sha256.New()
	size, err = io.Copy(h, f)
	return size, hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Close())
}

// copiedUpTo is the name of the last segment that was copied, "" if none was.
func (l *Log) copiedUpTo() (string, error) {
	if l.c.Copy == nil {
		return "", nil
	}
	f, err := l.fs.open(copiedFile)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(f, 1024))
	if err = errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	name := strings.TrimSpace(string(b))
	if _, ok := segmentFirst(name); !ok {
		return "", nil
	}
	return name, nil
}

// retire deletes segments whose time is over, once the log says so durably.
func (l *Log) retire() error {
	l.mu.Lock()
	over := l.overLocked()
	l.mu.Unlock()
	if len(over) == 0 {
		return nil
	}
	payload, err := json.Marshal(Note{Kind: NoteRemoved, Time: l.c.Now().UTC(), Segments: over})
	if err != nil {
		return err
	}
	if err := l.put(lineNote, payload, true); err != nil {
		return fmt.Errorf("delete %d segments: %w", len(over), err)
	}
	durable.Point("audit.retired")
	for _, a := range over {
		if err := l.fs.remove(a.File); err != nil {
			return fmt.Errorf("delete %s: %w", a.File, err)
		}
		l.mu.Lock()
		l.old = slices.DeleteFunc(l.old, func(o ended) bool { return o.File == a.File })
		l.stats.Removed++
		l.mu.Unlock()
	}
	return l.fs.syncDir()
}

// overLocked lists the segments that retention deletes: always the oldest, without a
// hole, and never the active one.
func (l *Log) overLocked() []Anchor {
	total := l.pos.size
	for _, o := range l.old {
		total += o.size
	}
	var over []Anchor
	for _, o := range l.old {
		old := l.c.Keep > 0 && l.c.Now().Sub(o.at) >= l.c.Keep
		big := l.c.KeepBytes > 0 && total > l.c.KeepBytes
		if !old && !big || l.c.Copy != nil && !o.copied {
			break
		}
		total -= o.size
		over = append(over, o.Anchor)
	}
	return over
}
