package pebblestore

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/session"
)

// The format. A key is one letter and fields; the letters never change meaning.
//
//	key                                      value
//	V                                        store version, 1 byte
//	s id                                     record: the session
//	a target                                 id of the target's unfinished session
//	u target creator submission-id           id of the session begun under that key
//	t target id                              empty; the sessions of a target by id
//	e target                                 highest epoch, 8 bytes big-endian; never deleted
//	g grant-id                               record: the grant
//	h session-id grant-id                    expiry, 8 bytes; the grants of a session by id
//	x expiry grant-id                        session id; grants by expiry
//	k store key                              a value of the key-value store of that
//	                                         name (kv.go); the key is the bytes as they are
//
// Fields: a string is its bytes with 00 written as 00 FF, closed by 00 01, so that
// keys sort like their fields and no field can end early. A target is three
// strings (database, table, partition), a creator two (issuer, subject). An expiry
// is 8 bytes big-endian of the nanoseconds since 1970, the sign bit inverted.
//
// A record:
//
//	+---------+-----------------+----------------------+
//	| version | CRC-32C         | JSON                 |
//	| 1 byte  | 4 bytes, little | the rest             |
//	+---------+-----------------+----------------------+
//
// The checksum covers the record's key, then the version byte, then the JSON: a
// record that was damaged or ended up under another key is noticed. The JSON is
// that of session.Session or session.Grant; unknown fields are refused, because
// writing the record back would lose them.
const (
	keyVersion    = 'V'
	keySession    = 's'
	keyActive     = 'a'
	keySubmission = 'u'
	keyTarget     = 't'
	keyEpoch      = 'e'
	keyGrant      = 'g'
	keyHolds      = 'h'
	keyExpiry     = 'x'
	keyValue      = 'k'

	// storeVersion changes when the layout of keys does.
	storeVersion = 1
	// recordVersion changes when a record cannot be read by older code.
	recordVersion = 1
	recordHeader  = 5
)

// ErrCorrupt marks stored bytes that do not decode or contradict each other. The
// error names the key.
var ErrCorrupt = errors.New("corrupt store")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func corrupt(key []byte, format string, args ...any) error {
	return fmt.Errorf("%w: key %q: %w", ErrCorrupt, key, fmt.Errorf(format, args...))
}

func appendString(dst []byte, s string) []byte {
	for {
		i := strings.IndexByte(s, 0)
		if i < 0 {
			return append(append(dst, s...), 0x00, 0x01)
		}
		dst = append(append(dst, s[:i]...), 0x00, 0xff)
		s = s[i+1:]
	}
}

// cutString is the inverse of appendString; rest is what follows.
func cutString(b []byte) (s string, rest []byte, ok bool) {
	var out []byte
	for {
		i := bytes.IndexByte(b, 0)
		if i < 0 || i+1 >= len(b) {
			return "", nil, false
		}
		out = append(out, b[:i]...)
		switch b[i+1] {
		case 0x01:
			return string(out), b[i+2:], true
		case 0xff:
			out = append(out, 0)
		default:
			return "", nil, false
		}
		b = b[i+2:]
	}
}

func key(letter byte, fields ...string) []byte {
	k := []byte{letter}
	for _, f := range fields {
		k = appendString(k, f)
	}
	return k
}

func sessionKey(id string) []byte        { return key(keySession, id) }
func grantKey(id string) []byte          { return key(keyGrant, id) }
func holdsKey(session, id string) []byte { return key(keyHolds, session, id) }

func activeKey(t session.Target) []byte { return key(keyActive, t.Database, t.Table, t.Partition) }
func epochKey(t session.Target) []byte  { return key(keyEpoch, t.Database, t.Table, t.Partition) }

func targetKey(t session.Target, id string) []byte {
	return key(keyTarget, t.Database, t.Table, t.Partition, id)
}

func submissionKey(p session.Principal, t session.Target, id string) []byte {
	return key(keySubmission, t.Database, t.Table, t.Partition, p.Issuer, p.Subject, id)
}

func expiryKey(at time.Time, id string) []byte {
	return appendString(append([]byte{keyExpiry}, expiryBytes(at)...), id)
}

func expiryBytes(at time.Time) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano())^1<<63)
}

// prefixEnd is the key behind every key that begins with k.
func prefixEnd(k []byte) []byte {
	end := bytes.Clone(k)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// encodeRecord makes the value for a key.
func encodeRecord(key []byte, v any) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, recordHeader))
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // a table descriptor comes back as it was
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	out := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	out[0] = recordVersion
	binary.LittleEndian.PutUint32(out[1:], checksum(key, out))
	return out, nil
}

func checksum(key, record []byte) uint32 {
	sum := crc32.Update(0, castagnoli, key)
	sum = crc32.Update(sum, castagnoli, record[:1])
	return crc32.Update(sum, castagnoli, record[recordHeader:])
}

// decodeRecord fills v, a pointer, from the value of a key. It keeps nothing of b.
func decodeRecord(key, b []byte, v any) error {
	switch {
	case len(b) < recordHeader:
		return corrupt(key, "a record of %d bytes", len(b))
	case b[0] != recordVersion:
		return corrupt(key, "record version %d; this program reads version %d", b[0], recordVersion)
	case checksum(key, b) != binary.LittleEndian.Uint32(b[1:]):
		return corrupt(key, "checksum mismatch")
	}
	dec := json.NewDecoder(bytes.NewReader(b[recordHeader:]))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return corrupt(key, "%w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return corrupt(key, "content behind the record")
	}
	return nil
}

func decodeSession(key, b []byte) (session.Session, error) {
	var s session.Session
	if err := decodeRecord(key, b, &s); err != nil {
		return session.Session{}, err
	}
	if err := session.Check(s); err != nil {
		return session.Session{}, corrupt(key, "%w", err)
	}
	if !bytes.Equal(key, sessionKey(s.ID)) || s.Version == 0 {
		return session.Session{}, corrupt(key, "holds session %q version %d", s.ID, s.Version)
	}
	return s, nil
}

func decodeGrant(key, b []byte) (session.Grant, error) {
	var g session.Grant
	if err := decodeRecord(key, b, &g); err != nil {
		return session.Grant{}, err
	}
	if err := session.CheckGrant(g); err != nil {
		// %v: a stored record is not the caller's mistake.
		return session.Grant{}, corrupt(key, "%v", err)
	}
	if !bytes.Equal(key, grantKey(g.ID)) {
		return session.Grant{}, corrupt(key, "holds grant %q", g.ID)
	}
	return g, nil
}
