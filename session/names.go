package session

import "fmt"

var stateNames = [...]string{"BEGUN", "COMMITTING", "COMMITTED", "ABORTED"}

var reasonNames = [...]string{
	"TARGET_NOT_EMPTY",
	"BUILD_DEADLINE_EXCEEDED",
	"COMMIT_DECISION_DEADLINE_EXCEEDED",
	"ABORTED_BY_CALLER",
	"FENCE_LOST",
	"TARGET_GONE",
	"GIVEN_UP",
}

// String returns the upstream name, e.g. "BEGUN".
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// ParseState is the inverse of State.String.
func ParseState(name string) (State, error) {
	for i, n := range stateNames {
		if n == name {
			return State(i), nil
		}
	}
	return 0, fmt.Errorf("%w: unknown session state %q", ErrInvalid, name)
}

// MarshalText implements encoding.TextMarshaler; unknown codes are an error.
func (s State) MarshalText() ([]byte, error) {
	if int(s) >= len(stateNames) {
		return nil, fmt.Errorf("%w: unknown session state %d", ErrInvalid, uint8(s))
	}
	return []byte(stateNames[s]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *State) UnmarshalText(b []byte) (err error) {
	*s, err = ParseState(string(b))
	return err
}

// String returns the upstream name, e.g. "ABORTED_BY_CALLER".
func (r AbortReason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("AbortReason(%d)", uint8(r))
}

// ParseAbortReason is the inverse of AbortReason.String.
func ParseAbortReason(name string) (AbortReason, error) {
	for i, n := range reasonNames {
		if n == name {
			return AbortReason(i), nil
		}
	}
	return 0, fmt.Errorf("%w: unknown abort reason %q", ErrInvalid, name)
}

// MarshalText implements encoding.TextMarshaler; unknown codes are an error.
func (r AbortReason) MarshalText() ([]byte, error) {
	if int(r) >= len(reasonNames) {
		return nil, fmt.Errorf("%w: unknown abort reason %d", ErrInvalid, uint8(r))
	}
	return []byte(reasonNames[r]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *AbortReason) UnmarshalText(b []byte) (err error) {
	*r, err = ParseAbortReason(string(b))
	return err
}

// String prints database.table or database.table/partition.
func (t Target) String() string {
	s := t.Database + "." + t.Table
	if t.Partition != "" {
		s += "/" + t.Partition
	}
	return s
}
