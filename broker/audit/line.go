package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// A line of the log is ASCII-framed JSON without spaces around its members, ended by
// one line feed:
//
//	{"seq":17,"prev":"<64 hex>","event":{…},"hash":"<64 hex>"}
//	{"seq":18,"prev":"<64 hex>","log":{…},"hash":"<64 hex>"}
//
//	seq    decimal without leading zeros; 1 in the first line ever, then one more each
//	prev   hash of the line before, zeros in the first line ever
//	event  an Event
//	log    a Note of the log on itself
//	hash   SHA-256, lower-case hex, of the bytes of the line before `,"hash":"`
//
// The hash covers bytes as they were written and not what they mean: there is no
// canonical form to agree on. These constants never change; a new format gets new
// member names.
const (
	lineSeq   = `{"seq":`
	linePrev  = `,"prev":"`
	lineEvent = `","event":`
	lineNote  = `","log":`
	lineHash  = `,"hash":"`
	lineEnd   = `"}`

	hashLen  = 2 * sha256.Size // in hex
	tailLen  = len(lineHash) + hashLen + len(lineEnd)
	maxDigit = 20 // of a uint64
)

// MaxLine is the longest line, in bytes without its line feed. A token with a scope
// of every bucket there can be takes a quarter of it.
const MaxLine = 16 << 20

// digest is a hash as it stands in a line.
type digest [hashLen]byte

func (d digest) String() string { return string(d[:]) }

// origin is prev of the first line ever.
var origin = func() (d digest) {
	for i := range d {
		d[i] = '0'
	}
	return d
}()

func digestOf(b []byte) (d digest) {
	sum := sha256.Sum256(b)
	hex.Encode(d[:], sum[:])
	return d
}

// parseDigest takes lower-case hex only: a hash has one spelling.
func parseDigest(s string) (d digest, ok bool) {
	if len(s) != hashLen {
		return d, false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return d, false
		}
	}
	copy(d[:], s)
	return d, true
}

// appendLine appends a line with its line feed. member is lineEvent or lineNote, and
// payload its JSON value.
func appendLine(b []byte, seq uint64, prev digest, member string, payload []byte) ([]byte, digest) {
	start := len(b)
	b = append(b, lineSeq...)
	b = strconv.AppendUint(b, seq, 10)
	b = append(b, linePrev...)
	b = append(b, prev[:]...)
	b = append(b, member...)
	b = append(b, payload...)
	hash := digestOf(b[start:])
	b = append(b, lineHash...)
	b = append(b, hash[:]...)
	b = append(b, lineEnd...)
	return append(b, '\n'), hash
}

// frame is a line taken apart. payload is part of the line's bytes.
type frame struct {
	seq     uint64
	prev    digest
	hash    digest
	note    bool // payload is a Note, else an Event
	payload []byte
}

var (
	errFrame = errors.New("not a line of a decision log")
	errHash  = errors.New("the hash is not that of the line: it was changed")
)

// parseFrame reads a line without its line feed. The error says what is wrong with
// it; with errHash the rest of the frame is what the line says.
func parseFrame(line []byte) (frame, error) {
	bad := func(what string) (frame, error) { return frame{}, fmt.Errorf("%w: %s", errFrame, what) }
	var f frame
	body := len(line) - tailLen
	if body < 0 || string(line[body:body+len(lineHash)]) != lineHash || string(line[len(line)-len(lineEnd):]) != lineEnd {
		return bad("it does not end with a hash")
	}
	var ok bool
	if f.hash, ok = parseDigest(string(line[body+len(lineHash) : len(line)-len(lineEnd)])); !ok {
		return bad("hash is not lower-case hex")
	}
	rest, ok := bytes.CutPrefix(line[:body], []byte(lineSeq))
	if !ok {
		return bad("it does not begin with seq")
	}
	n := 0
	for n < len(rest) && n <= maxDigit && rest[n] >= '0' && rest[n] <= '9' {
		n++
	}
	var err error
	if f.seq, err = strconv.ParseUint(string(rest[:n]), 10, 64); err != nil || rest[0] == '0' || f.seq == math.MaxUint64 {
		return bad("seq is no number of a line")
	}
	if rest, ok = bytes.CutPrefix(rest[n:], []byte(linePrev)); !ok || len(rest) < hashLen {
		return bad("prev is missing")
	}
	if f.prev, ok = parseDigest(string(rest[:hashLen])); !ok {
		return bad("prev is not lower-case hex")
	}
	rest = rest[hashLen:]
	if f.payload, ok = bytes.CutPrefix(rest, []byte(lineEvent)); !ok {
		if f.payload, ok = bytes.CutPrefix(rest, []byte(lineNote)); !ok {
			return bad("there is neither event nor log")
		}
		f.note = true
	}
	if digestOf(line[:body]) != f.hash {
		return f, errHash
	}
	// A value and nothing else, or members could be smuggled in behind it.
	if len(f.payload) == 0 || f.payload[0] != '{' || !json.Valid(f.payload) {
		return bad("event or log is no JSON object")
	}
	return f, nil
}
