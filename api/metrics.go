package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fluss-sluice/sluice/broker/vend"
)

// metrics are this package's Prometheus metrics. Labels take values from small
// fixed sets only: route patterns, methods we serve, status codes.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inflight prometheus.Gauge

	keys   *prometheus.CounterVec
	bounds *prometheus.CounterVec

	connections prometheus.Gauge
	refused     prometheus.Counter
}

func newMetrics(reg *prometheus.Registry, gates map[class]*gate) (*metrics, error) {
	m := &metrics{
		registry: reg,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_http_requests_total", Help: "Requests answered.",
		}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_http_request_duration_seconds", Help: "Time from headers read to answer written.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"route", "method"}),
		inflight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_http_requests_inflight", Help: "Requests being served or waiting for admission.",
		}),
		keys: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_credential_requests_total", Help: "Authenticated requests for keys of the object store, by shape of the answer and outcome: ok, or the problem's code.",
		}, []string{"format", "outcome"}),
		bounds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_credential_bound_total", Help: "Answers with keys by what limited their life.",
		}, []string{"bound"}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_connections", Help: "Open connections.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_connections_refused_total", Help: "Connections above the limit.",
		}),
	}
	all := []prometheus.Collector{m.requests, m.duration, m.inflight, m.keys, m.bounds, m.connections, m.refused}
	for c, g := range gates {
		labels := prometheus.Labels{"class": string(c)}
		all = append(all,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "sluice_admission_running", Help: "Admitted requests.", ConstLabels: labels,
			}, func() float64 { return float64(len(g.slots)) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "sluice_admission_waiting", Help: "Requests waiting for admission.", ConstLabels: labels,
			}, func() float64 { return float64(len(g.queue)) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "sluice_admission_rejected_total", Help: "Requests refused because the server was full.", ConstLabels: labels,
			}, func() float64 { return float64(g.rejected.Load()) }),
		)
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// outcomeOK is the outcome of requests that got keys.
const outcomeOK = "ok"

// vended counts a request for keys. Codes are a fixed set, and bounds are those of
// package vend: a label must never be text from elsewhere.
func (m *metrics) vended(format, outcome string, bound vend.Bound) {
	m.keys.WithLabelValues(format, outcome).Inc()
	switch bound {
	case "":
	case vend.BoundPolicy, vend.BoundDeadline, vend.BoundConfigured, vend.BoundRole, vend.BoundChaining, vend.BoundProvider:
		m.bounds.WithLabelValues(string(bound)).Inc()
	default:
		m.bounds.WithLabelValues("other").Inc()
	}
}

func (m *metrics) count(ev *event, status int, took time.Duration) {
	route, method := ev.route, ev.method
	if route == "" {
		route = "none"
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete:
	default:
		method = "other"
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(route, method).Observe(took.Seconds())
}
