# Workloads of Kubernetes: a service account's token has the subject
# system:serviceaccount:<namespace>:<name>, and what the account may do is data.
package sluice.authz

import data.sluice.request

default decision := {"allow": false, "reasons": ["no_account"], "rule": "default"}

decision := {"allow": true, "rule": account.key, "constraints": {"max_ttl": grant.max_ttl}} if {
	request.sound
	not outside_buckets
	every need in request.needs {
		need in grant.may
	}
} else := {"allow": false, "reasons": ["outside_grant"], "rule": account.key} if {
	account
}

# account is the caller, if it comes from a cluster that is listed. All four parts are
# compared, so that no name can pose as another namespace's.
account := {"key": concat("/", [parts[2], parts[3]]), "cluster": cluster} if {
	some cluster, c in data.clusters
	c.issuer == input.principal.issuer
	parts := split(input.principal.subject, ":")
	count(parts) == 4
	parts[0] == "system"
	parts[1] == "serviceaccount"
}

grant := data.accounts[account.cluster][account.key][input.target.database]

# An account with buckets of its own must name them.
outside_buckets if {
	grant.buckets
	"write" in request.needs
	count(object.get(input.request, "buckets", [])) == 0
}

outside_buckets if {
	some bucket in input.request.buckets
	not within(bucket)
}

within(_) if not grant.buckets

within(bucket) if {
	grant.buckets[0] <= bucket
	bucket <= grant.buckets[1]
}
