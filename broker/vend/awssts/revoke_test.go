package awssts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsiam "github.com/aws/aws-sdk-go-v2/service/iam"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/test/env"
)

// stubIAM speaks IAM's query protocol. No server that runs here compares source
// identities or issue times, so the exact documents are what is tested.
type stubIAM struct {
	*httptest.Server
	asked  chan url.Values
	status chan int // of the next answers; 200 when there is none
}

func newIAM(t *testing.T) *stubIAM {
	t.Helper()
	s := &stubIAM{asked: make(chan url.Values, 100), status: make(chan int, 100)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		status := http.StatusOK
		select {
		case status = <-s.status:
		default:
		}
		w.WriteHeader(status)
		action := r.Form.Get("Action")
		if status == http.StatusOK {
			fmt.Fprintf(w, "<%sResponse><ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></%sResponse>", action, action)
		} else {
			fmt.Fprintf(w, "<ErrorResponse><Error><Code>%s</Code><Message>%s</Message></Error><RequestId>r</RequestId></ErrorResponse>", map[int]string{403: "AccessDenied", 404: "NoSuchEntity"}[status], canaryBody)
		}
		s.asked <- r.Form
	}))
	t.Cleanup(s.Close)
	return s
}

// next is the next call, but for those of the start.
func (s *stubIAM) next(t *testing.T, action, document string) {
	t.Helper()
	f := <-s.asked
	if f.Get("Action") != action || f.Get("RoleName") != "BulkWriter" || f.Get("PolicyName") != "sluice-revoked" || f.Get("PolicyDocument") != document {
		t.Errorf("asked %v, want %s %s", f, action, document)
	}
}

func (s *stubIAM) quiet(t *testing.T) {
	t.Helper()
	select {
	case f := <-s.asked:
		t.Errorf("asked %v", f)
	default:
	}
}

func (s *stubIAM) client() *awsiam.Client {
	return awsiam.New(awsiam.Options{Region: "us-east-1", BaseEndpoint: &s.URL, Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDBROKER", SecretAccessKey: "broker-secret"}, nil
		})})
}

// denies is the exact document for sessions.
func denies(sessions ...string) string {
	return `{"Version":"2012-10-17","Statement":[{"Sid":"SluiceRevoked","Effect":"Deny","Action":"*","Resource":"*","Condition":{"StringEquals":{"aws:SourceIdentity":["` +
		strings.Join(sessions, `","`) + `"]}}}]}`
}

// revoking opens a vendor that revokes; told is what its observer heard.
func revoking(t *testing.T, iam *stubIAM, journal string, edit func(*Config)) (w *world, told chan Revoked) {
	t.Helper()
	told = make(chan Revoked, 100)
	w = open(t, func(c *Config, _ *stubSTS) {
		c.SourceIdentity = true
		c.Revocation = Revocation{Kind: RevokeSource, IAM: iam.client(), Journal: journal}
		c.Observer.Revoked = func(r Revoked) { told <- r }
		if edit != nil {
			edit(c)
		}
	})
	return w, told
}

func (w *world) vendFor(t *testing.T, session string) vend.Answer {
	t.Helper()
	r := w.request(t, 0)
	r.Session = session
	a, err := w.Vend(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// fresh is more than any key of an earlier process lives.
const fresh = 5 * time.Hour

func TestRevokedSessionsAreDeniedUntilTheirKeysHaveExpired(t *testing.T) {
	iam := newIAM(t)
	w, told := revoking(t, iam, filepath.Join(t.TempDir(), "journal"), nil)
	iam.next(t, "DeleteRolePolicy", "") // the start proves that it may
	<-told

	w.Invalidate("of-an-earlier-process")
	iam.next(t, "PutRolePolicy", denies("of-an-earlier-process"))
	if r := <-told; r.Err != nil || r.Sessions != 1 {
		t.Errorf("%+v", r)
	}
	w.clock.add(fresh)
	w.vendFor(t, "bb")
	w.clock.add(20 * time.Minute)
	w.vendFor(t, "aa")
	w.Invalidate("bb")
	iam.next(t, "PutRolePolicy", denies("bb"))
	w.Invalidate("has-no-keys")
	w.Invalidate("aa")
	iam.next(t, "PutRolePolicy", denies("aa", "bb"))
	w.clock.add(45 * time.Minute) // b's hour is over
	w.vendFor(t, "cc")
	w.Invalidate("cc")
	iam.next(t, "PutRolePolicy", denies("aa", "cc"))
	w.clock.add(fresh)
	w.revoker.wake <- struct{}{} // as its timer does
	iam.next(t, "DeleteRolePolicy", "")
	iam.quiet(t)
}

func TestARevocationSurvivesARestartAndAnIAMThatIsOutOfOrder(t *testing.T) {
	iam, journal := newIAM(t), filepath.Join(t.TempDir(), "journal")
	w, told := revoking(t, iam, journal, nil)
	iam.next(t, "DeleteRolePolicy", "")
	<-told
	w.vendFor(t, "aa")
	iam.status <- http.StatusForbidden
	w.Invalidate("aa")
	iam.next(t, "PutRolePolicy", denies("aa"))
	if r := <-told; !errors.Is(r.Err, vend.ErrUnavailable) || !strings.Contains(r.Err.Error(), "AccessDenied") || strings.Contains(r.Err.Error(), canaryBody) {
		t.Errorf("%+v", r)
	}
	w.revoker.wake <- struct{}{} // as its timer does
	iam.next(t, "PutRolePolicy", denies("aa"))
	if r := <-told; r.Err != nil || r.Sessions != 1 {
		t.Errorf("%+v", r)
	}
	for range 3 {
		iam.status <- http.StatusForbidden
	}
	w.vendFor(t, "bb")
	w.Invalidate("bb")
	<-told
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for len(iam.status) > 0 {
		<-iam.status
	}
	iam.next(t, "PutRolePolicy", denies("aa", "bb")) // failed
	revoking(t, iam, journal, nil)
	iam.next(t, "PutRolePolicy", denies("aa", "bb"))
	if st, err := os.Stat(journal); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestWhoMayNotRevokeDoesNotStart(t *testing.T) {
	iam, journal := newIAM(t), filepath.Join(t.TempDir(), "journal")
	start := func() error {
		_, err := tryOpen(t, func(c *Config, _ *stubSTS) {
			c.SourceIdentity, c.Revocation = true, Revocation{Kind: RevokeSource, IAM: iam.client(), Journal: journal}
		})
		return err
	}
	iam.status <- http.StatusForbidden
	if err := start(); !errors.Is(err, vend.ErrUnavailable) || !strings.Contains(err.Error(), "AccessDenied") {
		t.Error(err)
	}
	iam.status <- http.StatusNotFound
	if err := start(); err != nil {
		t.Errorf("a policy that is not there is removed: %v", err)
	}
	if err := os.WriteFile(journal, []byte(`{"version":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := start(); err == nil || !strings.Contains(err.Error(), "not a journal of version 1") {
		t.Error(err)
	}
}

func TestAPolicyThatIsFullKeepsTheKeysThatLiveLongest(t *testing.T) {
	iam := newIAM(t)
	w, told := revoking(t, iam, filepath.Join(t.TempDir(), "journal"), func(c *Config) { c.Revocation.MaxSessions = 2 })
	iam.next(t, "DeleteRolePolicy", "")
	<-told
	w.clock.add(fresh)
	for i, want := range []string{denies("s0"), denies("s0", "s1"), denies("s1", "s2")} {
		session := fmt.Sprintf("s%d", i)
		w.vendFor(t, session)
		w.Invalidate(session)
		iam.next(t, "PutRolePolicy", want)
		if r := <-told; (r.Err != nil) != (i == 2) || r.Sessions != min(i+1, 2) {
			t.Errorf("%+v", r)
		}
		w.clock.add(time.Minute)
	}
}

func TestADenyByIssueTimeEndsAllKeysAndNewOnesComeAfterIt(t *testing.T) {
	iam := newIAM(t)
	w, told := revoking(t, iam, filepath.Join(t.TempDir(), "journal"), func(c *Config) { c.SourceIdentity, c.Revocation.Kind = false, RevokeIssued })
	iam.next(t, "DeleteRolePolicy", "")
	<-told
	w.vendFor(t, "other")
	w.vendFor(t, "gone")
	w.clock.add(300 * time.Millisecond)
	w.Invalidate("gone")
	before := w.clock.now().Truncate(time.Second).Add(time.Second)
	iam.next(t, "PutRolePolicy", `{"Version":"2012-10-17","Statement":[{"Sid":"SluiceRevoked","Effect":"Deny","Action":"*","Resource":"*","Condition":{"DateLessThan":{"aws:TokenIssueTime":"`+
		before.Format(time.RFC3339)+`"}}}]}`)
	r := w.request(t, 0)
	r.Session = "other"
	if _, err := w.Vend(t.Context(), r); !errors.Is(err, vend.ErrBusy) {
		t.Errorf("keys of the second that is denied: %v", err)
	}
	w.clock.add(2 * time.Second)
	if a := w.vendFor(t, "other"); a.Cached || a.Credentials[0].Expires.Before(before) {
		t.Errorf("%+v", a)
	}
	w.clock.add(fresh)
	w.revoker.wake <- struct{}{}
	iam.next(t, "DeleteRolePolicy", "")
}

// TestTheDenyIsTakenByARealIAM shows that the calls and documents are those that a
// real one takes. MiniStack stores them; it compares neither condition.
func TestTheDenyIsTakenByARealIAM(t *testing.T) {
	s := servers.Get(t, env.MiniStack)
	client := awsiam.New(awsiam.Options{Region: s.Region, BaseEndpoint: &s.Endpoint, Credentials: s.Admin.Provider()})
	told := make(chan Revoked, 10)
	v := realVendor(t, s, func(c *Config) {
		c.SourceIdentity = true
		c.Revocation = Revocation{Kind: RevokeSource, IAM: client, Journal: filepath.Join(t.TempDir(), "journal"), PolicyName: "sluice-revoked-test"}
		c.Observer.Revoked = func(r Revoked) { told <- r }
	})
	if r := <-told; r.Err != nil {
		t.Fatal(r.Err)
	}
	r := realRequest(at(t, vend.Write, s.Bucket, "kv/db/t-7/1/snap-3"))
	if _, err := v.Vend(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	v.Invalidate(r.Session)
	if r := <-told; r.Err != nil {
		t.Fatal(r.Err)
	}
	name := roleName(s.RoleARN)
	out, err := client.GetRolePolicy(t.Context(), &awsiam.GetRolePolicyInput{RoleName: &name, PolicyName: aws.String("sluice-revoked-test")})
	if err != nil {
		t.Fatal(err)
	}
	if doc, err := url.QueryUnescape(*out.PolicyDocument); err != nil || strings.ReplaceAll(doc, " ", "") != denies(r.Session) {
		t.Errorf("the role's policy is %s, %v", doc, err)
	}
}
