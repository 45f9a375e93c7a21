//go:build !unix

package audit

import "io"

// lockDir trusts that one process writes a directory.
func lockDir(string) (io.Closer, error) { return io.NopCloser(nil), nil }
