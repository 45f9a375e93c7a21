// Package frame cuts Fluss's native RPC into frames. All integers are big-endian.
//
//	request  := int32 length | int16 API | int16 version | int32 id | message
//	response := int32 length | int8 kind | [int32 id] | message
//
//	length    bytes that follow it
//	kind 0    success; message is the call's response
//	kind 1    error; message is an ErrorResponse
//	kind 2    the server failed before it knew which request it was: no id; message
//	          is an ErrorResponse, and the server closes the connection
//
// Responses may come in any order. A frame longer than the reader's limit is refused
// before anything of it is stored, and memory grows only with bytes that arrived.
//
// Facts about Fluss: org.apache.fluss.rpc.protocol.MessageCodec, 0.8.0 to main of
// August 2026.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Kind tells what a response frame holds.
type Kind int8

// The kinds of response frames.
const (
	Success       Kind = 0
	Error         Kind = 1
	ServerFailure Kind = 2 // no id
)

const (
	requestHeader = 8 // API, version, id
	firstRead     = 64 << 10
)

// ErrMalformed marks bytes that are no frame of the protocol.
var ErrMalformed = errors.New("not a frame of Fluss's RPC")

// Request is one request frame.
type Request struct {
	API, Version int16
	ID           int32
	Message      []byte
}

// Response is one response frame.
type Response struct {
	Kind    Kind
	ID      int32 // 0 for ServerFailure
	Message []byte
}

// Append appends the frame with its length.
func (r Request) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(requestHeader+len(r.Message)))
	dst = binary.BigEndian.AppendUint16(dst, uint16(r.API))
	dst = binary.BigEndian.AppendUint16(dst, uint16(r.Version))
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.ID))
	return append(dst, r.Message...)
}

// Append appends the frame with its length.
func (r Response) Append(dst []byte) []byte {
	n := 1 + len(r.Message)
	if r.Kind != ServerFailure {
		n += 4
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(n))
	dst = append(dst, byte(r.Kind))
	if r.Kind != ServerFailure {
		dst = binary.BigEndian.AppendUint32(dst, uint32(r.ID))
	}
	return append(dst, r.Message...)
}

// Read reads one frame's content of at most limit bytes. It returns io.EOF only
// between frames, and io.ErrUnexpectedEOF inside one.
func Read(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int64(int32(binary.BigEndian.Uint32(head[:])))
	if n < 1 {
		return nil, fmt.Errorf("%w: length %d", ErrMalformed, n)
	}
	if n > int64(limit) {
		return nil, fmt.Errorf("%w: it announces %d bytes (first bytes %q), and the limit is %d", ErrMalformed, n, head, limit)
	}
	return readGrowing(r, int(n))
}

// readGrowing reads n bytes into memory that at most doubles with each part that
// arrived, so that an announced length alone costs nothing.
func readGrowing(r io.Reader, n int) ([]byte, error) {
	buf := make([]byte, min(n, firstRead))
	for have := 0; ; {
		if _, err := io.ReadFull(r, buf[have:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if have = len(buf); have == n {
			return buf, nil
		}
		grown := make([]byte, min(n, 2*have))
		copy(grown, buf)
		buf = grown
	}
}

// ParseResponse splits a frame's content; the message aliases it.
func ParseResponse(b []byte) (Response, error) {
	if len(b) == 0 {
		return Response{}, fmt.Errorf("%w: empty response", ErrMalformed)
	}
	switch k := Kind(b[0]); k {
	case ServerFailure:
		return Response{Kind: k, Message: b[1:]}, nil
	case Success, Error:
		if len(b) < 5 {
			return Response{}, fmt.Errorf("%w: response of %d bytes", ErrMalformed, len(b))
		}
		return Response{Kind: k, ID: int32(binary.BigEndian.Uint32(b[1:])), Message: b[5:]}, nil
	default:
		return Response{}, fmt.Errorf("%w: response of kind %d", ErrMalformed, k)
	}
}

// ParseRequest splits a frame's content; the message aliases it.
func ParseRequest(b []byte) (Request, error) {
	if len(b) < requestHeader {
		return Request{}, fmt.Errorf("%w: request of %d bytes", ErrMalformed, len(b))
	}
	return Request{
		API:     int16(binary.BigEndian.Uint16(b)),
		Version: int16(binary.BigEndian.Uint16(b[2:])),
		ID:      int32(binary.BigEndian.Uint32(b[4:])),
		Message: b[requestHeader:],
	}, nil
}
