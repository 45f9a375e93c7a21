package sluice.authz_test

import data.requests_test as t

test_a_role_gives_what_it_lists if {
	d := t.decide(t.ask("ada", "begin", []))
	d.allow
	d.rule == "role loader"
	t.allowed(t.ask("ada", "commit", []))
	t.allowed(t.ask("ada", "table.write", ["create"]))
	t.allowed(t.ask("worker-1", "token", ["read", "write"]))
}

test_and_nothing_else if {
	t.denied(t.ask("ada", "token", ["write"]), "no_role")
	t.denied(t.ask("ada", "table.write", ["drop"]), "no_role")
	t.denied(t.ask("worker-1", "begin", []), "no_role")
	t.denied(t.ask("nobody", "begin", []), "no_role")
}

test_roles_are_not_added_up if {
	t.denied(t.ask("worker-1", "token", ["write", "manifest:write"]), "no_role")
}

test_a_role_holds_in_its_database if {
	t.allowed(t.on(t.ask("ada", "read", ["snapshot:read"]), "ledger", "entries"))
	t.denied(t.on(t.ask("ada", "begin", []), "ledger", "entries"), "no_role")
	t.denied(t.on(t.ask("ada", "read", ["snapshot:read"]), "other", "entries"), "no_role")
}

test_policy_is_for_security if {
	t.allowed(json.remove(t.ask("sam", "policy.write", ["activate"]), ["target"]))
	t.denied(t.ask("ada", "policy.write", ["activate"]), "no_role")
}
