package s3

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/test/env"
)

const benchSize = 64 << 20

func BenchmarkPut(b *testing.B) {
	for _, kind := range env.Kinds {
		b.Run(string(kind), func(b *testing.B) {
			c := config(b, kind)
			c.PartSize = 0
			s, content := open(b, c), noise(1, benchSize)
			b.SetBytes(benchSize)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				key := fmt.Sprint(n)
				if _, err := s.Put(b.Context(), key, bytes.NewReader(content), objstore.PutOptions{}); err != nil {
					b.Fatal(err)
				}
				n++
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	for _, kind := range env.Kinds {
		b.Run(string(kind), func(b *testing.B) {
			s := open(b, config(b, kind))
			mustPut(b, s, "x", noise(1, benchSize))
			b.SetBytes(benchSize)
			b.ReportAllocs()
			for b.Loop() {
				rc, _, err := s.Get(b.Context(), "x", 0, -1)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, rc); err != nil || n != benchSize {
					b.Fatal(n, err)
				}
				if err := rc.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
