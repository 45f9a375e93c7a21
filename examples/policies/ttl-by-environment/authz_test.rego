package sluice.authz_test

import data.requests_test as t

ask(group, action, ops) := t.with_groups(t.ask("ada", action, ops), [group])

test_production_is_short if {
	d := t.decide(ask("release", "token", ["write"]))
	d.allow
	d.rule == "production"
	d.constraints.max_ttl == 300
	t.decide(ask("release", "begin", [])).constraints.max_ttl == 7200
}

test_development_is_long if {
	t.decide(t.on(ask("developers", "token", ["write"]), "sandbox", "t")).constraints.max_ttl == 3600
	t.decide(t.on(ask("developers", "begin", []), "sandbox", "t")).constraints.max_ttl == 604800
}

test_a_group_has_what_its_environment_gives_it if {
	t.denied(ask("developers", "begin", []), "no_grant")
	t.denied(ask("analysts", "begin", []), "no_grant")
	t.allowed(ask("analysts", "read", ["snapshot:read"]))
	t.denied(t.on(ask("release", "begin", []), "sandbox", "t"), "no_grant")
	t.denied(t.ask("ada", "read", ["snapshot:read"]), "no_grant")
}

test_no_environment_no_load if {
	t.denied(t.on(ask("release", "begin", []), "unlisted", "t"), "no_environment")
}
