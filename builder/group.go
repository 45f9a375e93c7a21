package builder

import (
	"context"
	"sync"
)

// group runs goroutines of which the first error ends the others.
//
// Their context ends without a cause on purpose: net/http returns a context's cause
// from other requests, where the error of one would pass for theirs.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
	err    error
}

func newGroup(ctx context.Context) *group {
	g := &group{}
	g.ctx, g.cancel = context.WithCancel(ctx)
	return g
}

func (g *group) run(f func(ctx context.Context) error) {
	g.wg.Go(func() { g.fail(f(g.ctx)) })
}

func (g *group) fail(err error) {
	if err != nil {
		g.once.Do(func() { g.err = err })
		g.cancel()
	}
}

// wait returns the first error, once all have ended.
func (g *group) wait() error {
	g.wg.Wait()
	g.cancel()
	return g.err
}
