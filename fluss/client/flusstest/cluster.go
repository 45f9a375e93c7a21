package flusstest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/internal/frame"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
)

// Coordinator is the server number of the coordinator; tablet servers count from 0.
const Coordinator int32 = -1

const maxFrame = 100 << 20

// Options says what cluster to start. The zero value is one tablet server of 0.9
// without security.
type Options struct {
	Release client.Release // 0 means client.Release09; see Outdated
	Tablets int            // 0 means 1

	// Outdated makes the servers offer what 0.7 did.
	Outdated bool

	// Users makes the listener ask for SASL/PLAIN: user → password.
	Users map[string]string

	// Authorizer lets access rules be kept; they are not enforced.
	Authorizer bool

	// Settings is what the servers say of their configuration.
	Settings map[string]string

	// Restore reads a committed snapshot for a new leader: the stored values by key.
	// An error makes the leader start empty, as a real one does. nil restores nothing.
	Restore func(*snapshot.Metadata) (map[string][]byte, error)
}

// Cluster is a running fake.
type Cluster struct {
	t    testing.TB
	opts Options

	servers map[int32]*server
	wg      sync.WaitGroup

	mu       sync.Mutex
	next     map[flusspb.API][]Action
	handlers map[flusspb.API]Handler
	seen     []Request

	state state // under mu
}

// Handler answers one request. An error that is a *client.Error is sent as its code
// and message, any other as CodeUnknownServerError.
type Handler func(*Request) (proto.Message, error)

// Start starts a cluster that ends with the test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if o.Release == 0 {
		o.Release = client.Release09
	}
	if o.Tablets == 0 {
		o.Tablets = 1
	}
	c := &Cluster{
		t: t, opts: o, servers: map[int32]*server{},
		next: map[flusspb.API][]Action{}, handlers: map[flusspb.API]Handler{}, state: newState(o),
	}
	t.Cleanup(c.close)
	for id := Coordinator; id < int32(o.Tablets); id++ {
		s := &server{cluster: c, id: id, conns: map[net.Conn]bool{}}
		c.servers[id] = s
		s.start()
	}
	return c
}

func (c *Cluster) close() {
	for _, s := range c.servers {
		s.stop()
	}
	c.wg.Wait()
}

// Address returns a server's address. It keeps it over Stop and Restart.
func (c *Cluster) Address(server int32) string { return c.servers[server].addr }

// Bootstrap is the coordinator's address, as configurations want it.
func (c *Cluster) Bootstrap() []string { return []string{c.Address(Coordinator)} }

// Stop closes a server's listener and connections.
func (c *Cluster) Stop(server int32) { c.servers[server].stop() }

// Restart lets a stopped server listen again.
func (c *Cluster) Restart(server int32) { c.servers[server].start() }

// HangUp closes a server's connections; new ones are welcome.
func (c *Cluster) HangUp(server int32) { c.servers[server].hangUp() }

// Next lets actions handle the next requests of a call, one each, in order.
func (c *Cluster) Next(api flusspb.API, actions ...Action) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next[api] = append(c.next[api], actions...)
}

// Handle replaces the handler of a call; nil brings the cluster's own back. The handler
// may be called by many connections at once.
func (c *Cluster) Handle(api flusspb.API, h Handler) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers[api] = h
}

// Requests returns the requests of a call that arrived so far.
func (c *Cluster) Requests(api flusspb.API) []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Request
	for _, r := range c.seen {
		if r.API == api {
			out = append(out, r)
		}
	}
	return out
}

// server is one listener with its connections.
type server struct {
	cluster *Cluster
	id      int32
	addr    string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
}

func (s *server) start() {
	addr := s.addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		s.cluster.t.Fatalf("flusstest: %v", err)
	}
	s.mu.Lock()
	s.listener, s.addr = l, l.Addr().String()
	s.mu.Unlock()
	s.cluster.wg.Go(func() { s.accept(l) })
}

func (s *server) stop() {
	s.mu.Lock()
	l := s.listener
	s.listener = nil
	s.mu.Unlock()
	if l != nil {
		l.Close()
	}
	s.hangUp()
}

func (s *server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

func (s *server) accept(l net.Listener) {
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		running := s.listener == l
		if running {
			s.conns[nc] = true
		}
		s.mu.Unlock()
		if !running {
			nc.Close()
			return
		}
		s.cluster.wg.Go(func() { s.serve(nc) })
	}
}

// serve reads requests and lets each be handled on its own, as a real server's workers
// do: answers may come in any order.
func (s *server) serve(nc net.Conn) {
	c := &connection{server: s, nc: nc, done: make(chan struct{})}
	var working sync.WaitGroup
	defer func() {
		close(c.done)
		nc.Close()
		working.Wait()
		s.mu.Lock()
		delete(s.conns, nc)
		s.mu.Unlock()
	}()
	r := bufio.NewReader(nc)
	for {
		content, err := frame.Read(r, maxFrame)
		if err != nil {
			return
		}
		req, err := frame.ParseRequest(content)
		if err != nil {
			return
		}
		working.Go(func() { c.handle(req) })
	}
}

// connection is one client's connection. Its user is set by a successful Authenticate.
type connection struct {
	server *server
	nc     net.Conn
	done   chan struct{}

	mu   sync.Mutex // of writes and user
	user string
}

func (c *connection) handle(f frame.Request) {
	api := flusspb.API(f.API)
	message := api.NewRequest()
	cluster := c.server.cluster
	if message == nil || !cluster.state.offers(c.server.id, api) {
		return // a server never answers what it does not know
	}
	if err := proto.Unmarshal(f.Message, message); err != nil {
		return // nor what it cannot read
	}
	x := &Exchange{Request: Request{Server: c.server.id, API: api, Version: f.Version, Message: message}, conn: c, id: f.ID}
	cluster.mu.Lock()
	cluster.seen = append(cluster.seen, x.Request)
	action := Pass
	if queue := cluster.next[api]; len(queue) > 0 {
		action, cluster.next[api] = queue[0], queue[1:]
	}
	cluster.mu.Unlock()
	action(x)
}

func (c *connection) write(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nc.Write(b) // a client that is gone wants no answer
}

// Request is one request as it arrived.
type Request struct {
	Server  int32
	API     flusspb.API
	Version int16
	Message proto.Message
}

// Exchange is one request with the means to answer it.
type Exchange struct {
	Request
	conn *connection
	id   int32
}

// Action decides what becomes of one request.
type Action func(*Exchange)

// Handle lets the cluster carry the request out and returns what it would answer.
func (x *Exchange) Handle() (proto.Message, error) {
	c := x.conn.server.cluster
	if err := x.conn.authenticated(x); err != nil {
		return nil, err
	}
	if x.API == flusspb.APIAuthenticate {
		return x.conn.authenticate(x.Message.(*flusspb.AuthenticateRequest))
	}
	c.mu.Lock()
	own := c.handlers[x.API]
	c.mu.Unlock()
	if own != nil {
		return own(&x.Request)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.answer(&x.Request)
	if err != nil {
		return nil, err
	}
	return proto.Clone(m), nil // it points into the state
}

// Answer sends an answer.
func (x *Exchange) Answer(message proto.Message, err error) {
	resp := frame.Response{Kind: frame.Success, ID: x.id}
	if err != nil {
		resp.Kind, message = frame.Error, errorResponse(err)
	}
	b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(message)
	if err != nil {
		panic(fmt.Sprintf("flusstest: answer to %s: %v", x.API, err))
	}
	resp.Message = b
	x.conn.write(resp.Append(nil))
}

func errorResponse(err error) *flusspb.ErrorResponse {
	code, text := int32(client.CodeUnknownServerError), err.Error()
	var refusal *client.Error
	if errors.As(err, &refusal) {
		code, text = int32(refusal.Code), refusal.Message
	}
	return &flusspb.ErrorResponse{ErrorCode: &code, ErrorMessage: &text}
}

// HangUp closes the connection that the request came on.
func (x *Exchange) HangUp() { x.conn.nc.Close() }

// Refuse makes the error that is sent as a code.
func Refuse(code client.Code, format string, args ...any) error {
	return &client.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// The usual actions.
var (
	// Pass handles and answers.
	Pass Action = func(x *Exchange) { x.Answer(x.Handle()) }
	// Lose does nothing: the request never arrived.
	Lose Action = func(*Exchange) {}
	// HandleThenSayNothing carries out and loses the answer.
	HandleThenSayNothing Action = func(x *Exchange) { x.Handle() }
	// HangUp closes the connection without carrying out.
	HangUp Action = func(x *Exchange) { x.HangUp() }
	// HandleThenHangUp carries out and closes the connection instead of answering.
	HandleThenHangUp Action = func(x *Exchange) { x.Handle(); x.HangUp() }
	// AnswerTwice carries out once and answers twice.
	AnswerTwice Action = func(x *Exchange) { m, err := x.Handle(); x.Answer(m, err); x.Answer(m, err) }
	// HandleTwice carries out twice, as when a request is delivered again, and answers
	// with the first result.
	HandleTwice Action = func(x *Exchange) { m, err := x.Handle(); x.Handle(); x.Answer(m, err) }
	// GiveUp answers that the server failed, and closes the connection.
	GiveUp Action = func(x *Exchange) {
		b, _ := proto.Marshal(errorResponse(errors.New("flusstest gave up")))
		x.conn.write(frame.Response{Kind: frame.ServerFailure, Message: b}.Append(nil))
		x.HangUp()
	}
)

// RefuseWith answers with an error frame without carrying out.
func RefuseWith(code client.Code, text string) Action {
	return func(x *Exchange) { x.Answer(nil, Refuse(code, "%s", text)) }
}

// AnswerWith answers with a message without carrying out.
func AnswerWith(m proto.Message) Action { return func(x *Exchange) { x.Answer(m, nil) } }

// Raw sends bytes instead of an answer.
func Raw(b []byte) Action { return func(x *Exchange) { x.conn.write(b) } }

// After passes the request on when the channel is closed, or forgets it when the
// connection ends first.
func After(gate <-chan struct{}) Action {
	return func(x *Exchange) {
		select {
		case <-gate:
			Pass(x)
		case <-x.conn.done:
		}
	}
}

// authenticated lets through what may come before authentication.
func (c *connection) authenticated(x *Exchange) error {
	if c.server.cluster.opts.Users == nil || x.API == flusspb.APIApiVersions || x.API == flusspb.APIAuthenticate {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.user == "" {
		return Refuse(client.CodeAuthentication, "the connection is not authenticated")
	}
	return nil
}

func (c *connection) authenticate(req *flusspb.AuthenticateRequest) (proto.Message, error) {
	parts := strings.Split(string(req.GetToken()), "\x00")
	if !strings.EqualFold(req.GetProtocol(), "PLAIN") || len(parts) != 3 || parts[0] != "" {
		return nil, Refuse(client.CodeAuthentication, "not a token of mechanism PLAIN")
	}
	if want, ok := c.server.cluster.opts.Users[parts[1]]; !ok || want != parts[2] {
		return nil, Refuse(client.CodeAuthentication, "wrong user or password")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.user = parts[1]
	return &flusspb.AuthenticateResponse{}, nil
}

// node describes a server to clients.
func (c *Cluster) node(id int32) *flusspb.ServerNode {
	host, port, err := net.SplitHostPort(c.Address(id))
	if err != nil {
		panic(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		panic(err)
	}
	return &flusspb.ServerNode{NodeId: proto.Int32(max(id, 0)), Host: &host, Port: proto.Int32(int32(n))}
}
