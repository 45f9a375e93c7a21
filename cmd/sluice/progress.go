package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// progress shows how far a long command is: one line that is redrawn on a terminal,
// now and then a plain line elsewhere. Its methods may be called from any goroutine.
type progress struct {
	w     io.Writer
	width func() int // of the terminal, 0 for none
	now   func() time.Time

	mu      sync.Mutex
	current status
	start   time.Time
	drawn   bool // a line stands on the terminal
	source  func(*status)

	stop chan struct{}
	done sync.WaitGroup
}

// status is what a progress line says. Zero fields are left out.
type status struct {
	what     string // reading, sorting and writing, uploading, …
	rows     int64
	bytes    int64 // of total
	total    int64 // -1 when it is not known
	rejected int64
	detail   string
}

// Pauses between lines.
const (
	terminalPace = 200 * time.Millisecond
	plainPace    = 10 * time.Second
)

// newProgress starts showing; close it.
func (g *globals) newProgress(what string) *progress {
	p := &progress{w: g.stderr, width: g.terminal, now: g.now, current: status{what: what}, start: g.now(), stop: make(chan struct{})}
	if g.quiet || g.json() {
		return p
	}
	g.shown = p
	pace := plainPace
	if p.width() > 0 {
		pace = terminalPace
	}
	p.done.Go(func() {
		t := time.NewTicker(pace)
		defer t.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-t.C:
				p.show()
			}
		}
	})
	return p
}

// phase begins a new stretch of work: counters, speed and ETA start over. follow,
// unless nil, fills in before each line what changes without being told.
func (p *progress) phase(what string, follow func(*status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current, p.source, p.start = status{what: what, rejected: p.current.rejected}, follow, p.now()
}

// set changes the status.
func (p *progress) set(change func(*status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.current)
}

// show prints the status now.
func (p *progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.source != nil {
		p.source(&p.current)
	}
	line := p.current.line(p.now().Sub(p.start))
	width := p.width()
	if width == 0 {
		fmt.Fprintln(p.w, line)
		return
	}
	if r := []rune(line); len(r) >= width {
		line = string(r[:width-1])
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	p.drawn = true
}

// above prints a line where the progress line stands, which moves down.
func (p *progress) above(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLocked()
	fmt.Fprintln(p.w, text)
}

func (p *progress) clearLocked() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}

// close ends the display and clears the terminal's line.
func (p *progress) close() {
	select {
	case <-p.stop:
		return
	default:
		close(p.stop)
	}
	p.done.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLocked()
}

// line prints a status after a time.
func (s status) line(elapsed time.Duration) string {
	parts := []string{s.what}
	if s.rows > 0 {
		parts = append(parts, grouped(s.rows)+" rows")
		if rate := perSecond(s.rows, elapsed); rate > 0 {
			parts = append(parts, grouped(rate)+" rows/s")
		}
	}
	if s.bytes > 0 {
		text := sizeText(s.bytes)
		if s.total > 0 {
			text += " of " + sizeText(s.total) + fmt.Sprintf(" (%d %%)", min(100, s.bytes*100/s.total))
		}
		parts = append(parts, text)
		if left, ok := s.left(elapsed); ok {
			parts = append(parts, "ETA "+clock(left))
		}
	}
	if s.rejected > 0 {
		parts = append(parts, grouped(s.rejected)+" rejected")
	}
	if s.detail != "" {
		parts = append(parts, s.detail)
	}
	return strings.Join(parts, "  ")
}

// left estimates the time to go from the speed so far.
func (s status) left(elapsed time.Duration) (time.Duration, bool) {
	if s.total <= 0 || s.bytes <= 0 || s.bytes >= s.total || elapsed < time.Second {
		return 0, false
	}
	return time.Duration(float64(elapsed) / float64(s.bytes) * float64(s.total-s.bytes)), true
}

func perSecond(n int64, d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64(float64(n) / d.Seconds())
}

// clock prints m:ss or h:mm:ss.
func clock(d time.Duration) string {
	s := int64(d.Round(time.Second).Seconds())
	if s < 3600 {
		return fmt.Sprintf("%d:%02d", s/60, s%60)
	}
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}

// grouped prints a number with thousands apart: 1,234,567.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return sign + b.String()
}

// sizeText prints bytes in binary units.
func sizeText(n int64) string {
	v, units := float64(n), []string{"KiB", "MiB", "GiB", "TiB", "PiB"}
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	i := -1
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
