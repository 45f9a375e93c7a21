package client

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// Kinds of failures that are not a server's refusal.
var (
	// ErrClosed is returned by every call of a closed Client.
	ErrClosed = errors.New("the Fluss client is closed")
	// ErrNoAnswer marks requests that were sent, or may have been, and were not
	// answered: whether they were carried out is not known.
	ErrNoAnswer = errors.New("the request was sent but not answered; it may have been carried out")
	// ErrUnreachable marks servers to which no connection could be opened; nothing
	// was sent.
	ErrUnreachable = errors.New("server not reached")
	// ErrProtocol marks peers that do not speak Fluss's RPC, or speak it wrongly.
	ErrProtocol = errors.New("not Fluss's RPC")
	// ErrUnsupported marks calls that the contacted server does not offer, and
	// servers older than this package can work with. Nothing was sent.
	ErrUnsupported = errors.New("not supported by the server")
	// ErrTooLarge marks requests longer than a server takes. Nothing was sent.
	ErrTooLarge = errors.New("request too large")
)

// Error is a server's refusal of a call, or of one bucket of it.
type Error struct {
	Code    Code
	Message string // the server's own words, may be empty; often a Java stack trace
	API     flusspb.API
	Server  string // address
	Bucket  string // what was refused, "" for the whole call
}

// Error says what was refused, by whom and why.
func (e *Error) Error() string {
	what := e.API.String()
	if e.Bucket != "" {
		what += " of " + e.Bucket
	}
	if e.Message == "" {
		return fmt.Sprintf("%s at %s: %s", what, e.Server, e.Code)
	}
	return fmt.Sprintf("%s at %s: %s: %s", what, e.Server, e.Code, firstLine(e.Message))
}

// firstLine leaves out the stack trace.
func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return strings.TrimSpace(line)
}

// CodeOf returns the code of the *Error in err's chain, CodeNone when there is none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeNone
}

// refusal returns the *Error of a bucket's or a whole answer's code, nil for success.
func refusal(api flusspb.API, server string, bucket string, code int32, message string) error {
	if code == int32(CodeNone) {
		return nil
	}
	return &Error{Code: Code(code), Message: message, API: api, Server: server, Bucket: bucket}
}

// Code is an error code of the protocol. Codes of later releases keep their number.
type Code int32

// The codes that callers branch on; the table below has all.
const (
	CodeUnknownServerError      Code = -1
	CodeNone                    Code = 0
	CodeUnsupportedVersion      Code = 2
	CodeDatabaseNotExist        Code = 4
	CodeDatabaseNotEmpty        Code = 5
	CodeDatabaseAlreadyExist    Code = 6
	CodeTableNotExist           Code = 7
	CodeTableAlreadyExist       Code = 8
	CodeSchemaNotExist          Code = 9
	CodeNotLeaderOrFollower     Code = 12
	CodeNotPrimaryKeyTable      Code = 20
	CodeUnknownTableOrBucket    Code = 21
	CodeInvalidUpdateVersion    Code = 22
	CodeInvalidCoordinator      Code = 23
	CodeFencedLeaderEpoch       Code = 24
	CodeRequestTimeout          Code = 25
	CodeOperationNotAttempted   Code = 27
	CodeSecurityToken           Code = 30
	CodePartitionNotExist       Code = 36
	CodeTableNotPartitioned     Code = 37
	CodeLakeNotConfigured       Code = 40
	CodeKVSnapshotNotExist      Code = 41
	CodePartitionAlreadyExist   Code = 42
	CodeInvalidPartition        Code = 43
	CodeLeaderNotAvailable      Code = 44
	CodeAuthentication          Code = 46
	CodeSecurityDisabled        Code = 47
	CodeAuthorization           Code = 48
	CodeRetriableAuthentication Code = 51
	CodeLakeSnapshotNotExist    Code = 53
	CodeIneligibleReplica       Code = 55
	CodeServerTagAlreadyExist   Code = 59
	CodeServerTagNotExist       Code = 60
	CodeNotCoordinatorLeader    Code = 65
	CodeDiskWriteLocked         Code = 70
	CodeBackPressure            Code = 72
)

// codes is the protocol's table: org.apache.fluss.rpc.protocol.Errors, where
// retriable is whether the exception's class is one of RetriableException.
var codes = map[Code]struct {
	name      string
	retriable bool
}{
	-1: {"unknown server error", false},
	0:  {"no error", false},
	1:  {"network error", true},
	2:  {"unsupported version of the call", false},
	3:  {"corrupt message", true},
	4:  {"database does not exist", false},
	5:  {"database is not empty", false},
	6:  {"database exists", false},
	7:  {"table does not exist", false},
	8:  {"table exists", false},
	9:  {"schema does not exist", true},
	10: {"log storage error", true},
	11: {"KV storage error", true},
	12: {"not the leader or a follower", true},
	13: {"record too large", false},
	14: {"corrupt record", true},
	15: {"invalid table", false},
	16: {"invalid database", false},
	17: {"invalid replication factor", false},
	18: {"invalid acks", false},
	19: {"log offset out of range", false},
	20: {"not a primary-key table", false},
	21: {"unknown table or bucket", true},
	22: {"version of the update too low", false},
	23: {"invalid coordinator epoch", false},
	24: {"fenced leader epoch", false},
	25: {"time-out inside the server", true},
	26: {"storage error", true},
	27: {"operation not attempted", false},
	28: {"too few replicas after the append", true},
	29: {"too few replicas", true},
	30: {"security token error", false},
	31: {"sequence out of order", false},
	32: {"duplicate sequence", false},
	33: {"unknown writer", false},
	34: {"invalid projection", false},
	35: {"invalid target column", false},
	36: {"partition does not exist", false},
	37: {"table is not partitioned", false},
	38: {"invalid timestamp", false},
	39: {"invalid configuration", false},
	40: {"lake storage is not configured", false},
	41: {"KV snapshot does not exist", false},
	42: {"partition exists", false},
	43: {"invalid partition", false},
	44: {"leader not available", true},
	45: {"too many partitions", false},
	46: {"authentication failed", false},
	47: {"security is disabled", false},
	48: {"not authorized", false},
	49: {"too many buckets", false},
	50: {"fenced tiering epoch", false},
	51: {"authentication failed, may be tried again", true},
	52: {"invalid rack", false},
	53: {"lake snapshot does not exist", false},
	54: {"lake table exists", false},
	55: {"ineligible replica", false},
	56: {"invalid change of a table", false},
	57: {"deletion is disabled", false},
	58: {"server does not exist", false},
	59: {"server tag exists", false},
	60: {"server tag does not exist", false},
	61: {"rebalance failed", false},
	62: {"no rebalance in progress", false},
	63: {"invalid producer", false},
	64: {"configuration error", false},
	65: {"not the leading coordinator", false},
	66: {"scanner expired", false},
	67: {"unknown scanner", false},
	68: {"invalid scan request", false},
	69: {"too many scanners", false},
	70: {"disk is locked for writes", true},
	71: {"capacity for KV leaders exceeded", false},
	72: {"storage back-pressure", true},
	73: {"historical partition throttled", true},
}

// String returns the code's meaning and number.
func (c Code) String() string {
	if known, ok := codes[c]; ok {
		return fmt.Sprintf("%s (%d)", known.name, int32(c))
	}
	return fmt.Sprintf("error code %d, unknown to this client", int32(c))
}

// Retriable reports whether the protocol calls the code a passing one. Unknown codes
// are not.
func (c Code) Retriable() bool { return codes[c].retriable }

// refused reports whether a code that a server gave says that it did nothing and
// that another server, or the same one later, may: what even calls that must not
// happen twice are tried again for. A leader may not know a schema yet that was just
// added (seen on 0.9.1).
func (c Code) refused() bool {
	switch c {
	case CodeNotLeaderOrFollower, CodeUnknownTableOrBucket, CodeLeaderNotAvailable,
		CodeNotCoordinatorLeader, CodeDiskWriteLocked, CodeBackPressure, CodeSchemaNotExist:
		return true
	}
	return false
}
