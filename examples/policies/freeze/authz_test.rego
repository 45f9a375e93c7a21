package sluice.authz_test

import data.requests_test as t

loads := [["begin", []], ["token", ["write"]], ["object", ["write"]], ["commit", []], ["table.write", ["drop"]]]

test_a_frozen_table_takes_no_load if {
	every load in loads {
		t.denied(t.ask("ada", load[0], load[1]), "frozen")
		t.allowed(t.on(t.ask("ada", load[0], load[1]), "shop", "orders2"))
	}
	t.decide(t.ask("ada", "begin", [])).rule == "freeze shop.orders"
}

test_it_is_read_and_given_up if {
	t.allowed(t.ask("ada", "read", ["snapshot:read"]))
	t.allowed(t.ask("ada", "abort", []))
}

test_a_frozen_database_freezes_its_tables if {
	t.denied(t.on(t.ask("ada", "begin", []), "ledger", "entries"), "frozen")
}

test_a_freeze_ends if {
	begin := t.on(t.ask("ada", "begin", []), "ledger", "entries")
	t.denied(t.at(begin, "2026-06-30T23:59:59Z"), "frozen")
	t.allowed(t.at(begin, "2026-07-01T00:00:00Z"))
	t.denied(t.at(t.ask("ada", "begin", []), "2036-07-01T00:00:00Z"), "frozen")
}

test_a_freeze_is_stronger_than_a_grant_and_no_grant if {
	t.denied(t.on(t.ask("bob", "begin", []), "shop", "orders2"), "no_grant")
	t.denied(t.ask("bob", "abort", []), "no_grant")
	t.denied(t.ask("bob", "begin", []), "frozen")
}
