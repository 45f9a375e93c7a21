package schema

import (
	"fmt"
	"strings"
)

// maxIdentifier is the longest database, table or partition value name, in bytes.
const maxIdentifier = 200

// CheckIdentifier checks the name of a database or table, or one partition value:
// [A-Za-z0-9_-]{1,200}, not starting with "__". (Fluss also forbids "." and "..",
// which the alphabet excludes already; it allows "__" only for names of its own.)
func CheckIdentifier(s string) error {
	if s == "" {
		return fmt.Errorf("name is empty")
	}
	if len(s) > maxIdentifier {
		return fmt.Errorf("name %q… is %d bytes long, more than %d", s[:32], len(s), maxIdentifier)
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '_' && c != '-' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return fmt.Errorf("name %q has the byte %q; only letters, digits, '_' and '-' are allowed", s, string(c))
		}
	}
	if strings.HasPrefix(s, "__") {
		return fmt.Errorf("name %q starts with \"__\", which Fluss keeps for itself", s)
	}
	return nil
}

// partitionSeparator joins the values of a partition name. No value can hold it.
const partitionSeparator = "$"

// PartitionName joins the values of a partition in partition-key order. Each value
// must be a valid identifier; unpartitioned tables have no values and the name "".
func PartitionName(t *Table, values []string) (string, error) {
	if len(values) != len(t.PartitionKey) {
		return "", fmt.Errorf("partition has %d values, the table %d partition columns", len(values), len(t.PartitionKey))
	}
	for i, v := range values {
		if err := CheckIdentifier(v); err != nil {
			return "", fmt.Errorf("value of partition column %q: %w", t.PartitionKey[i], err)
		}
	}
	return strings.Join(values, partitionSeparator), nil
}

// SplitPartitionName is the inverse of PartitionName.
func SplitPartitionName(t *Table, name string) ([]string, error) {
	if len(t.PartitionKey) == 0 {
		if name != "" {
			return nil, fmt.Errorf("table is not partitioned, partition %q cannot exist", name)
		}
		return nil, nil
	}
	values := strings.Split(name, partitionSeparator)
	if _, err := PartitionName(t, values); err != nil {
		return nil, err
	}
	return values, nil
}
