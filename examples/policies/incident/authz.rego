# During an incident Sluice stands still but for those who work on it, and somebody
# whose keys are lost is blocked at once: tokens are checked again at every use.
package sluice.authz

import data.sluice.request

default decision := {"allow": false, "reasons": ["no_grant"], "rule": "default"}

decision := {"allow": false, "reasons": ["blocked"], "rule": "blocked"} if {
	blocked
} else := {"allow": false, "reasons": ["incident"], "rule": concat(" ", ["incident", data.incident.id])} if {
	data.incident.active
	concerned
	not responder
} else := {"allow": true, "rule": "grant", "constraints": {"max_ttl": max_ttl}} if {
	request.sound
	every need in request.needs {
		need in data.grants[input.principal.issuer][input.principal.subject][input.target.database]
	}
}

blocked if input.principal.subject in data.blocked.subjects[input.principal.issuer]

blocked if {
	some block in data.blocked.networks
	net.cidr_contains(block, input.client.address)
}

# concerned: an incident without databases concerns all of them.
concerned if count(data.incident.databases) == 0

concerned if input.target.database in data.incident.databases

responder if {
	some group in input.principal.groups
	group in data.incident.responders[input.principal.issuer]
}

# What is given out during an incident does not outlive it by much.
max_ttl := 300 if data.incident.active

max_ttl := 3600 if not data.incident.active
