//go:build unix

package extsort

import (
	"fmt"
	"syscall"
)

// reserve returns n zeroed bytes outside the Go heap. Pages count only once they
// are touched.
func reserve(n int) ([]byte, error) {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes to sort in: %w", n, err)
	}
	adviseHuge(b)
	return b, nil
}

func release(b []byte) { _ = syscall.Munmap(b) }
