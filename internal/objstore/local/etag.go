package local

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// hashLimit is the largest object whose ETag is its digest: reading and hashing it
// costs less than the request that asks.
const hashLimit = 256 << 10

// describe makes the Info of an open object. Anything but a regular file is not
// found.
func describe(key string, f *os.File) (objstore.Info, error) {
	fi, err := f.Stat()
	if err != nil {
		return objstore.Info{}, err
	}
	if !fi.Mode().IsRegular() {
		return objstore.Info{}, objstore.ErrNotFound
	}
	info := objstore.Info{Key: key, Size: fi.Size(), ModTime: fi.ModTime()}
	if fi.Size() > hashLimit {
		info.ETag = statTag(fi)
		return info, nil
	}
	h := sha256.New()
	if n, err := io.Copy(h, io.NewSectionReader(f, 0, fi.Size())); err != nil || n != fi.Size() {
		return objstore.Info{}, fmt.Errorf("read %d of %d bytes: %w", n, fi.Size(), err)
	}
	info.SHA256 = hex.EncodeToString(h.Sum(nil))
	info.ETag = digestTag(info.SHA256)
	return info, nil
}

func digestTag(sha256 string) string { return "c-" + sha256 }

// statTag does not use the change time: removing the unfinished object's name after
// linking changes it.
func statTag(fi os.FileInfo) string {
	return fmt.Sprintf("f-%x-%x-%x", inode(fi), fi.ModTime().UnixNano(), fi.Size())
}
