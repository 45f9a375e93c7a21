package conformance

import "slices"

// consequence is what a verdict means for Sluice.
func consequence(c check, v Verdict) string {
	switch {
	case v == Fail && c.lax == "":
		return "mode " + string(c.mode) + " must not be used with this store"
	case v == Fail, v == NotSupported && c.must == mustWork:
		return c.lax
	}
	return ""
}

// judge says which modes can be trusted. A mode is trusted when nothing that its
// safety rests on failed and when it works at all: what could not be tried is no
// proof, and a mode of which nothing was seen to pass is not trusted.
func judge(modes []Mode, results []Result) []Trust {
	var out []Trust
	for _, m := range modes {
		t, seen := Trust{Mode: m}, false
		for _, r := range results {
			if r.Mode != m {
				continue
			}
			seen = seen || r.Verdict == Pass
			switch {
			case r.Verdict == Fail && !r.Lax:
				t.Reasons = append(t.Reasons, "not so: "+r.Check+" ("+r.Detail+")")
			case r.Consequence != "" && !slices.Contains(t.Advice, r.Consequence):
				t.Advice = append(t.Advice, r.Consequence)
			}
		}
		if !seen && len(t.Reasons) == 0 {
			t.Reasons = []string{"nothing of it was seen to work"}
		}
		t.Trusted = len(t.Reasons) == 0
		out = append(out, t)
	}
	return out
}
