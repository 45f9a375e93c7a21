package frame

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFramesReadBackWhatWasAppended(t *testing.T) {
	request := Request{API: 1012, Version: 1, ID: -7, Message: []byte("body")}
	b, err := Read(bytes.NewReader(request.Append(nil)), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseRequest(b)
	if err != nil || got.API != 1012 || got.Version != 1 || got.ID != -7 || string(got.Message) != "body" {
		t.Fatalf("got %+v, %v", got, err)
	}
	for _, want := range []Response{
		{Kind: Success, ID: 3, Message: []byte("x")},
		{Kind: Error, ID: 1 << 30},
		{Kind: ServerFailure, Message: []byte("gone")},
	} {
		b, err := Read(bytes.NewReader(want.Append(nil)), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseResponse(b)
		if err != nil || got.Kind != want.Kind || got.ID != want.ID || !bytes.Equal(got.Message, want.Message) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestTheBytesOfARequestAreThoseOfTheProtocol(t *testing.T) {
	have := Request{API: 1000, Version: 0, ID: 5, Message: []byte{0xaa}}.Append(nil)
	want := []byte{0, 0, 0, 9, 3, 0xe8, 0, 0, 0, 0, 0, 5, 0xaa}
	if !bytes.Equal(have, want) {
		t.Errorf("have %x, want %x", have, want)
	}
}

func TestReadRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bytes []byte
		want  error
	}{
		{"the end between frames is the end", nil, io.EOF},
		{"an end inside the length", []byte{0, 0, 0}, io.ErrUnexpectedEOF},
		{"an end after the length", []byte{0, 0, 0, 1}, io.ErrUnexpectedEOF},
		{"an end inside the content", []byte{0, 0, 0, 3, 0, 0}, io.ErrUnexpectedEOF},
		{"a frame of no bytes", []byte{0, 0, 0, 0}, ErrMalformed},
		{"a negative length", []byte{0xff, 0xff, 0xff, 0xff, 0}, ErrMalformed},
		{"a frame above the limit", []byte{0, 1, 0, 1, 0}, ErrMalformed},
		{"a server of HTTP", []byte("HTTP/1.1 400 Bad Request\r\n"), ErrMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Read(bytes.NewReader(tt.bytes), 1<<16); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestAnnouncedBytesCostNothingUntilTheyArrive(t *testing.T) {
	head := []byte{0x3f, 0xff, 0xff, 0xff} // 1 GiB
	allocated := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			if _, err := Read(bytes.NewReader(head), 1<<30); !errors.Is(err, io.ErrUnexpectedEOF) {
				b.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	if allocated > 2*firstRead {
		t.Errorf("%d bytes were allocated for a frame of which nothing arrived", allocated)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(Request{API: 1000, ID: 1, Message: []byte("abc")}.Append(nil))
	f.Add(Response{Kind: Success, ID: 1, Message: []byte("abc")}.Append(nil))
	f.Add(Response{Kind: ServerFailure, Message: []byte("abc")}.Append(nil))
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		content, err := Read(bytes.NewReader(b), 1<<20)
		if err != nil {
			return
		}
		if len(content) > len(b) {
			t.Fatalf("%d bytes out of %d", len(content), len(b))
		}
		if r, err := ParseRequest(content); err == nil && !bytes.Equal(r.Append(nil), b[:4+len(content)]) {
			t.Errorf("request %+v is not written as it was read", r)
		}
		if r, err := ParseResponse(content); err == nil && !bytes.Equal(r.Append(nil), b[:4+len(content)]) {
			t.Errorf("response %+v is not written as it was read", r)
		}
	})
}
