package serve

import (
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/vend/awssts"
	"github.com/fluss-sluice/sluice/session"
)

// stsCodes are the error codes that get a label of their own. Others are "other":
// whoever answers as STS must not be able to make series.
var stsCodes = []string{
	"", "no_answer", "AccessDenied", "ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "SignatureDoesNotMatch", "InvalidIdentityToken",
	"IDPCommunicationError", "IDPRejectedClaim", "MalformedPolicyDocument", "PackedPolicyTooLarge", "RegionDisabledException", "ValidationError",
	"InvalidParameterValue", "NoSuchEntity", "Throttling", "InternalFailure", "InternalError", "ServiceUnavailable",
}

// stsMetrics registers the metrics of the vendor and returns what fills them.
func stsMetrics(reg *prometheus.Registry, log *slog.Logger) awssts.Observer {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_sts_calls_total", Help: "Calls of STS by operation and error code; the code of a success is empty.",
	}, []string{"operation", "code"})
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "sluice_sts_call_duration_seconds", Help: "Duration of calls of STS.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
	}, []string{"operation"})
	size := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "sluice_sts_policy_characters", Help: "Characters of session policies sent, of which STS takes 2048.", Buckets: prometheus.LinearBuckets(256, 256, 8),
	})
	percent := prometheus.LinearBuckets(10, 10, 10)
	packed := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "sluice_sts_packed_policy_percent", Help: "Size of session policies and tags as STS packs them, in percent of what it takes.", Buckets: percent,
	})
	token := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "sluice_sts_session_token_percent", Help: "Size of session tokens, in percent of what STS takes, where it reports that.", Buckets: percent,
	})
	lookups := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_sts_lookups_total", Help: "Requests for keys by what the cache answered: hit, miss (a call was begun), join (waited for another's call), stale (STS was out of order).",
	}, []string{"outcome"})
	revoked := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sluice_sts_revoked", Help: "Sessions whose keys the role's policy denies; 1 when it denies all keys issued before an instant.",
	})
	failed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_sts_revocations_failed_total", Help: "Attempts to end keys early that failed: keys live that should not.",
	})
	reg.MustRegister(calls, took, size, packed, token, lookups, revoked, failed)
	for _, l := range []awssts.Lookup{awssts.LookupHit, awssts.LookupMiss, awssts.LookupJoin, awssts.LookupStale} {
		lookups.WithLabelValues(string(l))
	}
	return awssts.Observer{
		Call: func(c awssts.Call) {
			code := c.Code
			if !slices.Contains(stsCodes, code) {
				code = "other"
			}
			calls.WithLabelValues(c.Operation, code).Inc()
			took.WithLabelValues(c.Operation).Observe(c.Took.Seconds())
			if c.PolicySize > 0 {
				size.Observe(float64(c.PolicySize))
			}
			if c.PackedPolicySize >= 0 {
				packed.Observe(float64(c.PackedPolicySize))
			}
			if c.TokenUtilization >= 0 {
				token.Observe(float64(c.TokenUtilization))
			}
		},
		Lookup: func(l awssts.Lookup) { lookups.WithLabelValues(string(l)).Inc() },
		Revoked: func(r awssts.Revoked) {
			if r.Err != nil {
				failed.Inc()
				log.Error("keys live on that were revoked", "err", r.Err)
				return
			}
			revoked.Set(float64(r.Sessions))
		},
	}
}

// brokerMetrics registers the metrics of commits whose keys outlive the freeze and
// returns what fills them.
func brokerMetrics(reg *prometheus.Registry) broker.Observer {
	objects := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_commit_copied_objects_total", Help: "Objects that commits with hand-over copy copied to their final place.",
	})
	bytes := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_commit_copied_bytes_total", Help: "Their bytes.",
	})
	verified := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_verifications_total", Help: "Second looks at what was published with hand-over verify: same, or differs from what was published.",
	}, []string{"outcome"})
	reg.MustRegister(objects, bytes, verified)
	same, differ := verified.WithLabelValues("same"), verified.WithLabelValues("differs")
	return broker.Observer{
		Copied: func(n, size int64) {
			objects.Add(float64(n))
			bytes.Add(float64(size))
		},
		Verified: func(_ session.Session, differs bool) {
			if differs {
				differ.Inc()
			} else {
				same.Inc()
			}
		},
	}
}
