# Requests for tests. This file is the same in every recipe.
package requests_test

import data.sluice.authz
import data.sluice.request

issuer := "https://login.example.com"

session := {
	"id": "01890000-0000-7000-8000-000000000001",
	"epoch": 1,
	"state": "BEGUN",
	"creator": {"issuer": issuer, "subject": "ada"},
	"buckets": 16,
	"build_deadline": "2026-06-02T00:00:00Z",
}

# ask is a request by an identity token, within a session where one is needed.
ask(subject, action, ops) := object.union(
	{
		"version": 1,
		"action": action,
		"principal": {"issuer": issuer, "subject": subject, "via": "identity"},
		"target": {"database": "shop", "table": "orders"},
		"request": {"ops": ops},
		"time": "2026-06-01T12:00:00Z",
		"client": {},
	},
	{key: session | some key in ["session"]; action in {"token", "credential", "sign", "object", "commit", "abort"}},
)

with_groups(req, groups) := object.union(req, {"principal": {"groups": groups}})

on(req, database, table) := object.union(req, {"target": {"database": database, "table": table}})

at(req, time) := object.union(req, {"time": time})

decide(req) := d if d := authz.decision with input as req

allowed(req) if decide(req).allow

denied(req, reason) if {
	d := decide(req)
	not d.allow
	reason in d.reasons
}

test_needs if {
	every case in [
		["begin", [], {"begin"}],
		["commit", [], {"commit"}],
		["abort", [], {"alter"}],
		["read", ["snapshot:read"], {"read"}],
		["policy.write", ["activate"], {"policy"}],
		["token", ["write", "manifest:write"], {"write", "commit"}],
		["table.write", ["drop"], {"drop"}],
		["token", ["delete"], {"unknown"}],
	] {
		request.needs == case[2] with input as ask("ada", case[0], case[1])
	}
	not request.needs with input as ask("ada", "x-unknown", ["write"])
}

test_sound if {
	write := ask("ada", "object", ["write"])
	request.sound with input as write
	request.sound with input as object.union(write, {"principal": {"via": "token"}})
	request.sound with input as json.remove(ask("ada", "policy.write", ["read"]), ["target"])
	request.sound with input as ask("ada", "begin", [])
	every broken in [
		json.remove(write, ["session"]),
		json.remove(write, ["target"]),
		json.remove(write, ["principal/issuer"]),
		json.remove(write, ["principal/subject"]),
		json.remove(write, ["principal/via"]),
		json.remove(write, ["request/ops"]),
		json.remove(write, ["action"]),
		ask("ada", "object", ["delete"]),
		ask("ada", "object", []),
		ask("", "object", ["write"]),
		object.union(ask("ada", "begin", []), {"principal": {"via": "token"}}),
	] {
		not request.sound with input as broken
	}
}
