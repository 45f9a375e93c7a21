package local

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path"
	"time"
)

// lockStripes is the number of lock files; a key always uses the same one. It is
// part of the on-disk agreement between processes and never changes.
const lockStripes = 256

// lock takes the lock of a key against every process on this root.
func (s *Store) lock(ctx context.Context, key string) (unlock func(), err error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	stripe := h.Sum32() % lockStripes
	// The in-process half first: waiting for it is cheap and can be cancelled.
	select {
	case s.locks[stripe] <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f, err := s.lockFile(ctx, path.Join(tempDir, fmt.Sprintf("lock-%02x", stripe)))
	if err != nil {
		<-s.locks[stripe]
		return nil, fmt.Errorf("lock: %w", err)
	}
	return func() {
		_ = f.Close() // releases the lock
		<-s.locks[stripe]
	}, nil
}

// lockFile opens and locks a file. It polls, because a blocking flock could not be
// cancelled; other processes hold locks for a few system calls only.
func (s *Store) lockFile(ctx context.Context, name string) (*os.File, error) {
	f, err := s.root.OpenFile(name, os.O_RDWR|os.O_CREATE, filePerm)
	if err != nil {
		return nil, err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		locked, err := tryLock(f)
		if locked {
			return f, nil
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		}
	}
}
