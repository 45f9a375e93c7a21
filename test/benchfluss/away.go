package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/builder"
)

// rowBytes is what a row of BenchRow takes in a value: key, text and double.
const rowBytes = 56

// adopted finds how long a bucket was away in the log of sluiced.
var adopted = regexp.MustCompile(`"?msg"?[=:]"bucket adopted".*?"?away"?[=:]"?([0-9.a-zµ]+)`)

// away publishes tables of one bucket.
func (b *bench) away(ctx context.Context, sizes string) error {
	for _, size := range strings.Split(sizes, ",") {
		mb, err := strconv.ParseInt(size, 10, 32)
		if err != nil {
			return fmt.Errorf("-away %s: %w", sizes, err)
		}
		table, err := b.table(ctx, fmt.Sprintf("away_%d", mb), "FULL", 1)
		if err != nil {
			return err
		}
		rows := mb << 20 / rowBytes
		if _, err := b.load(ctx, table, rows, 1, builder.Snappy); err != nil {
			return err
		}
		found := adopted.FindAllStringSubmatch(b.broker.Log(), -1)
		if len(found) == 0 {
			return fmt.Errorf("sluiced's log tells of no adopted bucket: %s", b.broker.Log())
		}
		took, err := awayTime(found[len(found)-1][1])
		if err != nil {
			return err
		}
		fmt.Printf("a bucket of %d MB (%d rows) was away for %d ms\n", mb, rows, took.Milliseconds())
		if err := b.java.DropTable(ctx, table); err != nil {
			return err
		}
	}
	return nil
}

// awayTime reads a duration as a text log or, in nanoseconds, as a JSON log has it.
func awayTime(s string) (time.Duration, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.Duration(n), nil
	}
	return time.ParseDuration(s)
}
