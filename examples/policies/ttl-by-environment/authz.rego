# How long something lives depends on the environment its database belongs to.
package sluice.authz

import data.sluice.request

default decision := {"allow": false, "reasons": ["no_grant"], "rule": "default"}

decision := {"allow": true, "rule": environment, "constraints": {"max_ttl": min(limits)}} if {
	request.sound
	granted
} else := {"allow": false, "reasons": ["no_environment"], "rule": "environment"} if {
	input.target
	not environment
}

# environment of the target. A database in two is a conflict, and so an error.
environment := name if {
	some name, e in data.environments
	input.target.database in e.databases
}

# limits of everything the request needs: a load may take longer than a token lives.
limits contains data.environments[environment].max_ttl[kind] if {
	some need in request.needs
	kind := object.get({"begin": "load"}, need, "token")
}

granted if {
	some group in input.principal.groups
	every need in request.needs {
		need in data.environments[environment].groups[input.principal.issuer][group]
	}
}
