package sluice.authz_test

import data.requests_test as t

# ask at a time; 2026-06-01 is a Monday.
ask(action, ops, time) := t.at(t.with_groups(t.ask("ada", action, ops), ["orders-team"]), time)

test_inside_a_window if {
	d := t.decide(ask("begin", [], "2026-06-01T22:00:00Z"))
	d.allow
	d.constraints.max_ttl == 7200
	t.allowed(ask("token", ["write"], "2026-06-02T04:59:59Z"))
	t.allowed(ask("commit", [], "2026-06-07T12:00:00Z"))
}

test_lifetimes_end_with_the_window if {
	t.decide(ask("begin", [], "2026-06-01T23:59:58Z")).constraints.max_ttl == 2
	t.decide(ask("token", ["write"], "2026-06-02T04:00:30Z")).constraints.max_ttl == 3570
}

test_outside_of_every_window if {
	every time in ["2026-06-01T21:59:59Z", "2026-06-02T05:00:00Z", "2026-06-01T04:00:00Z", "2026-06-06T22:30:00Z"] {
		t.denied(ask("begin", [], time), "outside_window")
		t.denied(ask("token", ["write"], time), "outside_window")
		t.denied(ask("commit", [], time), "outside_window")
	}
}

test_the_zone_of_the_time_does_not_matter if {
	t.allowed(ask("begin", [], "2026-06-02T00:30:00+02:00"))
	t.denied(ask("begin", [], "2026-06-01T22:30:00+02:00"), "outside_window")
}

test_reading_and_giving_up_at_any_time if {
	t.allowed(ask("read", ["snapshot:read"], "2026-06-01T12:00:00Z"))
	t.allowed(ask("abort", [], "2026-06-01T12:00:00Z"))
}

test_a_window_is_no_grant if {
	t.denied(t.at(t.ask("ada", "begin", []), "2026-06-01T22:00:00Z"), "not_a_member")
	t.denied(t.on(ask("begin", [], "2026-06-01T22:00:00Z"), "ledger", "t"), "not_a_member")
	not t.allowed(ask("table.write", ["drop"], "2026-06-01T22:00:00Z"))
	not t.allowed(ask("policy.write", ["activate"], "2026-06-01T22:00:00Z"))
}
