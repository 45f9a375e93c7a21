package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are this package's Prometheus metrics. Labels take values from small
// fixed sets only: route patterns, methods we serve, status codes.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inflight prometheus.Gauge

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
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_connections", Help: "Open connections.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_connections_refused_total", Help: "Connections above the limit.",
		}),
	}
	all := []prometheus.Collector{m.requests, m.duration, m.inflight, m.connections, m.refused}
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
