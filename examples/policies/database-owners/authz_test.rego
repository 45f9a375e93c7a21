package sluice.authz_test

import data.requests_test as t

owner := "orders-team"

test_owners_do_everything_in_their_database if {
	every request in [["begin", []], ["token", ["write", "manifest:write"]], ["commit", []], ["abort", []], ["table.write", ["drop"]]] {
		t.allowed(t.with_groups(t.ask("ada", request[0], request[1]), [owner]))
		t.denied(t.with_groups(t.ask("ada", request[0], request[1]), ["geo-team", "analysts"]), "not_your_database")
		t.denied(t.ask("ada", request[0], request[1]), "not_your_database")
	}
}

test_but_not_in_another if {
	t.denied(t.on(t.with_groups(t.ask("ada", "begin", []), [owner]), "places", "cities"), "not_your_database")
	t.denied(t.on(t.with_groups(t.ask("ada", "begin", []), [owner]), "nobodys", "t"), "not_your_database")
}

test_named_groups_read if {
	d := t.decide(t.with_groups(t.ask("bob", "read", ["snapshot:read"]), ["analysts"]))
	d.allow
	d.rule == "reader"
	d.constraints.max_ttl == 900
	t.denied(t.ask("bob", "read", ["snapshot:read"]), "not_your_database")
}

test_everybody_reads_what_is_public if {
	t.allowed(t.on(t.ask("bob", "read", ["snapshot:read"]), "places", "cities"))
	t.denied(t.on(t.ask("bob", "begin", []), "places", "cities"), "not_your_database")
}

test_a_group_of_another_issuer_is_another_group if {
	req := object.union(t.with_groups(t.ask("ada", "begin", []), [owner]), {"principal": {"issuer": "https://evil.example"}})
	t.denied(req, "not_your_database")
}

test_owning_a_database_is_not_owning_the_policy if {
	t.denied(t.with_groups(t.ask("ada", "policy.write", ["activate"]), [owner]), "not_your_database")
}
