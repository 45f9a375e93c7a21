# Nobody puts a policy in force alone: whoever proposed a revision does not approve it,
# and it is activated when another administrator has approved it. Rolling back to what
# was in force before needs one, since the present may be what is wrong.
package sluice.authz

import data.sluice.request

default decision := {"allow": false, "reasons": ["no_grant"], "rule": "default"}

decision := {"allow": true, "rule": "administrator"} if {
	edits
	administrator
	every op in input.request.ops {
		permitted(op)
	}
} else := {"allow": true, "rule": "break_glass"} if {
	edits
	input.request.ops == ["break_glass"]
	some group in input.principal.groups
	group in data.break_glass[input.principal.issuer]
} else := {"allow": false, "reasons": reasons, "rule": "two_persons"} if {
	edits
	administrator
} else := {"allow": true, "rule": "grant", "constraints": {"max_ttl": 900}} if {
	request.sound
	not edits
	every need in request.needs {
		need in data.grants[input.principal.issuer][input.principal.subject][input.target.database]
	}
}

edits if {
	request.sound
	input.action == "policy.write"
	count(input.request.ops) > 0
}

administrator if input.principal.subject in data.administrators[input.principal.issuer]

# A person is written as in input.request.policy: issuer, a space, subject.
caller := concat(" ", [input.principal.issuer, input.principal.subject])

permitted(op) if op in {"read", "propose", "withdraw", "rollback", "shadow"}

permitted("approve") if input.request.policy.author != caller

permitted("activate") if count(others) > 0

# others approved, are administrators still, and are not the author.
others contains person if {
	some person in input.request.policy.approvals
	person != input.request.policy.author
	some issuer, subjects in data.administrators
	some subject in subjects
	person == concat(" ", [issuer, subject])
}

reasons contains "own_revision" if "approve" in input.request.ops

reasons contains "needs_approval" if "activate" in input.request.ops

reasons contains "needs_proposal" if "edit" in input.request.ops

reasons contains "not_permitted" if {
	some op in input.request.ops
	not op in {"approve", "activate", "edit"}
}
