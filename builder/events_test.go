package builder

import (
	"fmt"
	"testing"
)

func TestBucketRangesReadWell(t *testing.T) {
	for want, in := range map[string][]int{"": nil, "3": {3}, "0-2": {0, 1, 2}, "0,2-3,9": {0, 2, 3, 9}} {
		if got := bucketRanges(in); got != want {
			t.Errorf("%v is %q, want %q", in, got, want)
		}
	}
	if got := fmt.Sprint(bucketScope([]int{0, 1, 5})); got != "[bucket:0-1:write bucket:5:write]" {
		t.Errorf("scope %s", got)
	}
}
