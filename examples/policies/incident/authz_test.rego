package sluice.authz_test

import data.requests_test as t
import data.sluice.authz

decide(req, incident) := d if {
	d := authz.decision with input as req
		with data.incident as object.union(data.incident, incident)
}

everywhere := {"active": true, "id": "INC-7"}

begin := t.ask("ada", "begin", [])

test_without_an_incident_grants_count if {
	d := t.decide(begin)
	d.allow
	d.constraints.max_ttl == 3600
	t.denied(t.ask("bob", "begin", []), "no_grant")
	t.denied(t.ask("ada", "table.write", ["drop"]), "no_grant")
}

test_an_incident_stops_everybody if {
	every ask in [["begin", []], ["object", ["write"]], ["commit", []], ["abort", []], ["read", ["snapshot:read"]]] {
		d := decide(t.ask("ada", ask[0], ask[1]), everywhere)
		not d.allow
		d.reasons == ["incident"]
		d.rule == "incident INC-7"
	}
}

test_but_those_who_work_on_it if {
	d := decide(t.with_groups(begin, ["on-call"]), everywhere)
	d.allow
	d.constraints.max_ttl == 300
	not decide(t.with_groups(begin, ["off-call"]), everywhere).allow
	not decide(object.union(t.with_groups(begin, ["on-call"]), {"principal": {"issuer": "https://evil.example"}}), everywhere).allow
}

test_an_incident_of_one_database if {
	decide(begin, object.union(everywhere, {"databases": ["ledger"]})).allow
	not decide(begin, object.union(everywhere, {"databases": ["shop"]})).allow
}

test_who_is_blocked_is_blocked_always if {
	t.denied(t.ask("lost-laptop", "begin", []), "blocked")
	t.denied(t.with_groups(t.ask("lost-laptop", "object", ["write"]), ["on-call"]), "blocked")
	t.denied(object.union(begin, {"client": {"address": "203.0.113.9"}}), "blocked")
	t.allowed(object.union(begin, {"client": {"address": "203.0.114.9"}}))
}
