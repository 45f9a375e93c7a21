package objstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// ErrConditions marks a store that ignores conditions: two writers could both win.
var ErrConditions = errors.New("the store does not keep its conditions")

// ProbeDir is the directory of the objects that Probe makes and removes.
const ProbeDir = "_sluice"

// cleanUp bounds removing the probe when the caller has given up.
const cleanUp = 10 * time.Second

// Probe proves by one small object of a name of its own that a store does what
// Sluice needs: write-once and If-Match refuse whom they must, what was written is
// read and listed, and it can be deleted. A store that ignores conditions without a
// word is found here and nowhere else; the error then wraps ErrConditions. A
// MultipartProber proves the same for what it writes in parts.
func Probe(ctx context.Context, s Store) (err error) {
	p := &probe{s: s, key: ProbeDir + "/probe-" + rand.Text()}
	defer func() {
		if gone := p.remove(ctx); err == nil {
			err = gone
		}
	}()
	first, err := p.put(ctx, "first", "")
	if err != nil {
		return err
	}
	if err := p.refused(ctx, "an object was created twice: it ignores If-None-Match", "", ErrExists); err != nil {
		return err
	}
	if err := p.holds(ctx, "first"); err != nil {
		return err
	}
	if _, err := p.put(ctx, "second", first.ETag); err != nil {
		return err
	}
	if err := p.refused(ctx, "an object was replaced by its old ETag: it ignores If-Match", first.ETag, ErrPrecondition); err != nil {
		return err
	}
	if err := p.holds(ctx, "second"); err != nil {
		return err
	}
	if err := p.listed(ctx); err != nil {
		return err
	}
	return p.multipart(ctx)
}

// MultipartProber is implemented by stores that write large objects in another way
// than small ones.
type MultipartProber interface {
	// ProbeMultipart proves that this other way keeps the conditions too: an error wraps
	// ErrConditions when it does not. It may leave an object under the key, which does
	// not exist before.
	ProbeMultipart(ctx context.Context, key string) error
}

// ProbeCopy proves that a store which is to copy objects does it, and does not copy
// another version than was asked for; the error then wraps ErrConditions. A store that
// is no Copier is errors.ErrUnsupported.
func ProbeCopy(ctx context.Context, s Store) (err error) {
	c, ok := s.(Copier)
	if !ok {
		return fmt.Errorf("probe: %w: the store does not copy objects", errors.ErrUnsupported)
	}
	from := &probe{s: s, key: ProbeDir + "/probe-" + rand.Text()}
	to := &probe{s: s, key: from.key + "-copy"}
	defer func() {
		if gone := errors.Join(from.remove(ctx), to.remove(ctx)); err == nil {
			err = gone
		}
	}()
	first, err := from.put(ctx, "first", "")
	if err != nil {
		return err
	}
	if _, err := from.put(ctx, "second", first.ETag); err != nil {
		return err
	}
	switch _, err := c.Copy(ctx, from.key, to.key, first.ETag); {
	case err == nil:
		return fmt.Errorf("probe %s: %w: another version was copied than the one asked for", from.key, ErrConditions)
	case !errors.Is(err, ErrPrecondition):
		return fmt.Errorf("probe: %w", err)
	}
	if _, err := c.Copy(ctx, from.key, to.key, ""); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return to.holds(ctx, "second")
}

// multipart proves the rest of what is written in parts, under the probe's key.
func (p *probe) multipart(ctx context.Context) error {
	m, ok := p.s.(MultipartProber)
	if !ok {
		return nil
	}
	if err := p.remove(ctx); err != nil {
		return err
	}
	if err := m.ProbeMultipart(ctx, p.key); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return p.holds(ctx, "replacement")
}

type probe struct {
	s   Store
	key string
}

func (p *probe) put(ctx context.Context, content, ifMatch string) (Info, error) {
	info, err := p.s.Put(ctx, p.key, strings.NewReader(content), PutOptions{IfMatch: ifMatch, Size: int64(len(content)), HasSize: true})
	if err != nil {
		return info, fmt.Errorf("probe: %w", err)
	}
	return info, nil
}

// refused wants a write to fail with one kind of error.
func (p *probe) refused(ctx context.Context, broken, ifMatch string, want error) error {
	_, err := p.put(ctx, "unwanted", ifMatch)
	switch {
	case errors.Is(err, want):
		return nil
	case err == nil:
		return fmt.Errorf("probe %s: %w: %s", p.key, ErrConditions, broken)
	}
	return err
}

// holds compares the object's content.
func (p *probe) holds(ctx context.Context, want string) error {
	body, _, err := p.s.Get(ctx, p.key, 0, -1)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	got, err := io.ReadAll(io.LimitReader(body, 64))
	if err := errors.Join(err, body.Close()); err != nil {
		return fmt.Errorf("probe: read %s: %w", p.key, err)
	}
	if string(got) != want {
		return fmt.Errorf("probe %s: %w: it holds %q after %q was written", p.key, ErrConditions, got, want)
	}
	return nil
}

func (p *probe) listed(ctx context.Context) error {
	for info, err := range p.s.List(ctx, ProbeDir+"/") {
		if err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		if info.Key == p.key {
			return nil
		}
	}
	return fmt.Errorf("probe: %s was written and is not listed", p.key)
}

// remove leaves nothing behind, whatever became of the caller.
func (p *probe) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	if err := p.s.Delete(ctx, p.key); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if _, err := p.s.Head(ctx, p.key); err == nil {
		return fmt.Errorf("probe: %s was deleted and is still there", p.key)
	} else if !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}
