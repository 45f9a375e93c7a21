package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"

	"github.com/fluss-sluice/sluice/session/scope"
)

// site is where one examination happens: objects that belong to nobody the attempts
// are made for, around the prefix that is granted.
//
//	{root}/t-7/1/snap-3/      granted
//	{root}/t-7/10/snap-3/f    a sibling bucket of the table
//	{root}/t-7/1/snap-30/f    a sibling snapshot
//	{root}/t-7/1/f            beside it
//	{root}/t-7/f, {root}/f    above it
//	{root}/t-8/1/snap-3/f     another session's
//	{root}/t-7/1/snap-3/f     in the other bucket
type site struct {
	c      Config
	place  place
	http   *http.Client
	admin  *s3.Client
	root   string
	own    string // the granted prefix, without slash at its end
	prefix scope.Prefix
	actors map[Mode]actor

	upload string            // id of a multipart upload of the sibling, with one part
	before map[string]string // key → ETag of what lies outside own
	serial int               // makes names and contents differ
}

// actor sends calls as a worker does.
type actor interface {
	// do sends a call; an error means that there was no answer.
	do(context.Context, call) (answer, error)
}

const (
	dirName = "sluice-doctor-"
	ownPath = "t-7/1/snap-3"
)

// cleanUpTime bounds removing everything when the caller's time is over.
const cleanUpTime = time.Minute

func newSite(c Config, extra map[Mode]actor) (*site, error) {
	p, err := parsePlace(c.Endpoint, c.Region, c.PathStyle)
	if err != nil {
		return nil, err
	}
	s := &site{c: c, place: p, http: newClient(c.Timeout), root: dirName + strings.ToLower(rand.Text()[:16]), actors: map[Mode]actor{}}
	if c.Prefix != "" {
		s.root = c.Prefix + "/" + s.root
	}
	s.own = s.root + "/" + ownPath
	if s.prefix, err = scope.ParsePrefix(s.own); err != nil {
		return nil, fmt.Errorf("prefix: %w", err)
	}
	s.admin = s3.New(s3.Options{
		Region: c.Region, BaseEndpoint: aws.String(p.endpoint()), UsePathStyle: c.PathStyle, Credentials: c.Admin, Logger: logging.Nop{},
		HTTPClient: s.http, RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired, ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		DisableS3ExpressSessionAuth: aws.Bool(true), DisableMultiRegionAccessPoints: true,
	})
	if slices.Contains(c.Modes, Sign) {
		if s.actors[Sign], err = newSigned(s); err != nil {
			return nil, err
		}
	}
	maps.Copy(s.actors, extra)
	return s, nil
}

// outside are the keys of canaries in the examined bucket.
func (s *site) outside() []string {
	return []string{s.at("t-7/10/snap-3/f"), s.at("t-7/1/snap-30/f"), s.at("t-7/1/f"), s.at("t-7/f"), s.at("f"), s.at("t-8/1/snap-3/f")}
}

// at is a key below the root.
func (s *site) at(path string) string { return s.root + "/" + path }

// in is a key below the granted prefix.
func (s *site) in(name string) string { return s.own + "/" + name }

// fresh is a name that was not used before.
func (s *site) fresh(name string) string {
	s.serial++
	return fmt.Sprintf("%s-%d", name, s.serial)
}

func (s *site) setUp(ctx context.Context) error {
	for _, key := range append(s.outside(), s.in("f")) {
		if err := s.put(ctx, s.c.Bucket, key, "content of "+key); err != nil {
			return fmt.Errorf("with the broker's own keys, put s3://%s/%s: %w", s.c.Bucket, key, err)
		}
	}
	if s.c.OtherBucket != "" {
		if err := s.put(ctx, s.c.OtherBucket, s.in("f"), "elsewhere"); err != nil {
			return fmt.Errorf("with the broker's own keys, put s3://%s/%s: %w", s.c.OtherBucket, s.in("f"), err)
		}
	}
	key := s.outside()[0]
	up, err := s.admin.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &s.c.Bucket, Key: &key})
	if err != nil {
		return fmt.Errorf("begin a multipart upload: %w", s3Error(err))
	}
	s.upload = aws.ToString(up.UploadId)
	if _, err := s.admin.UploadPart(ctx, &s3.UploadPartInput{Bucket: &s.c.Bucket, Key: &key, UploadId: &s.upload, PartNumber: aws.Int32(1), Body: strings.NewReader("part")}); err != nil {
		return fmt.Errorf("upload a part: %w", s3Error(err))
	}
	s.before, err = s.listOutside(ctx)
	if err == nil && len(s.before) != len(s.outside())+1 {
		err = fmt.Errorf("the store lists %d of %d objects that were just written: what attempts do could not be seen", len(s.before), len(s.outside())+1)
	}
	return err
}

func (s *site) put(ctx context.Context, bucket, key, content string) error {
	_, err := s.admin.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader(content)})
	return s3Error(err)
}

// listOutside lists the objects of the site that attempts must not change: all but
// those below the granted prefix, with the one exception that no attempt may delete.
func (s *site) listOutside(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	err := s.list(ctx, s.c.Bucket, func(key, etag string) {
		if (!strings.HasPrefix(key, s.own+"/") || key == s.in("f")) && !strings.HasPrefix(key, s.at("store/")) && !strings.HasPrefix(key, s.at("reach/")) {
			out[key] = etag
		}
	})
	return out, err
}

func (s *site) list(ctx context.Context, bucket string, found func(key, etag string)) error {
	pages := s3.NewListObjectsV2Paginator(s.admin, &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: aws.String(s.root + "/")})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("list s3://%s/%s/ with the broker's own keys: %w", bucket, s.root, s3Error(err))
		}
		for _, o := range page.Contents {
			found(aws.ToString(o.Key), aws.ToString(o.ETag))
		}
	}
	return nil
}

// harm says what has changed outside since the last call; "" = nothing. It puts things
// right, so that the next attempt is not blamed.
func (s *site) harm(ctx context.Context) (string, error) {
	now, err := s.listOutside(ctx)
	if err != nil {
		return "", err
	}
	var what []string
	for key, etag := range now {
		switch old, was := s.before[key]; {
		case !was:
			what = append(what, "there is now "+s.short(key))
			_, err = s.admin.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.c.Bucket, Key: &key})
		case old != etag:
			what = append(what, s.short(key)+" was replaced")
			s.before[key] = etag
		}
	}
	for key := range s.before {
		if _, is := now[key]; !is {
			what = append(what, s.short(key)+" is gone")
			delete(s.before, key)
		}
	}
	if parts, gone := s.parts(ctx); gone != "" || parts > 1 {
		what = append(what, strings.TrimSpace("the sibling's multipart upload was changed "+gone))
	}
	if s.c.OtherBucket != "" {
		more, err2 := s.harmElsewhere(ctx)
		what, err = append(what, more...), errors.Join(err, err2)
	}
	slices.Sort(what)
	return strings.Join(what, ", "), s3Error(err)
}

// harmElsewhere looks into the other bucket, where one object belongs.
func (s *site) harmElsewhere(ctx context.Context) ([]string, error) {
	var what []string
	found := false
	err := s.list(ctx, s.c.OtherBucket, func(key, _ string) {
		if key == s.in("f") {
			found = true
		} else {
			what = append(what, "there is now "+s.short(key)+" in the other bucket")
		}
	})
	if err == nil && !found {
		what = append(what, "the object in the other bucket is gone")
	}
	return what, err
}

// parts counts the parts of the sibling's upload.
func (s *site) parts(ctx context.Context) (n int, gone string) {
	if s.upload == "" {
		return 0, ""
	}
	out, err := s.admin.ListParts(ctx, &s3.ListPartsInput{Bucket: &s.c.Bucket, Key: &s.outside()[0], UploadId: &s.upload})
	var api smithy.APIError
	if errors.As(err, &api) && api.ErrorCode() == "NoSuchUpload" {
		s.upload = ""
		return 0, "(it is gone)"
	}
	if err != nil {
		return 1, "" // another trouble is not the attempt's doing
	}
	return len(out.Parts), ""
}

// short is a key as reports show it.
func (s *site) short(key string) string {
	rest := strings.TrimPrefix(key, s.root+"/")
	return fmt.Sprintf("%.100q", rest)
}

// cleanUp removes everything below the root and returns what it could not remove. It
// has time of its own.
func (s *site) cleanUp(ctx context.Context) (left []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer cancel()
	defer s.http.CloseIdleConnections()
	for _, bucket := range []string{s.c.Bucket, s.c.OtherBucket} {
		if bucket == "" {
			continue
		}
		if what := s.cleanBucket(ctx, bucket); what != "" {
			left = append(left, what)
		}
	}
	return left
}

// cleanBucket returns what may be left, "" for nothing.
func (s *site) cleanBucket(ctx context.Context, bucket string) string {
	err := errors.Join(s.abortUploads(ctx, bucket), s.removeVersions(ctx, bucket), s.removeObjects(ctx, bucket))
	n := 0
	err = errors.Join(err, s.list(ctx, bucket, func(string, string) { n++ }))
	first := "" // the others are of the same cause, as a rule
	if err != nil {
		first, _, _ = strings.Cut(": "+err.Error(), "\n")
	}
	switch {
	case n > 0:
		return fmt.Sprintf("%d objects below s3://%s/%s/%s", n, bucket, s.root, first)
	case err != nil:
		return fmt.Sprintf("perhaps something below s3://%s/%s/%s", bucket, s.root, first)
	}
	return ""
}

func (s *site) removeObjects(ctx context.Context, bucket string) error {
	var keys []string
	err := s.list(ctx, bucket, func(key, _ string) { keys = append(keys, key) })
	return errors.Join(err, each(keys, func(key string) error {
		_, err := s.admin.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key})
		return s3Error(err)
	}))
}

// removeVersions is for buckets with versioning, in which a plain delete leaves the
// content behind a marker. Stores without versions do not answer; that is no fault.
func (s *site) removeVersions(ctx context.Context, bucket string) error {
	in := &s3.ListObjectVersionsInput{Bucket: &bucket, Prefix: aws.String(s.root + "/")}
	type version struct{ key, id string }
	var found []version
	for {
		out, err := s.admin.ListObjectVersions(ctx, in)
		if err != nil {
			return nil
		}
		for _, v := range out.Versions {
			found = append(found, version{aws.ToString(v.Key), aws.ToString(v.VersionId)})
		}
		for _, v := range out.DeleteMarkers {
			found = append(found, version{aws.ToString(v.Key), aws.ToString(v.VersionId)})
		}
		if !aws.ToBool(out.IsTruncated) || aws.ToString(out.NextKeyMarker) == "" {
			break
		}
		in.KeyMarker, in.VersionIdMarker = out.NextKeyMarker, out.NextVersionIdMarker
	}
	return each(found, func(v version) error {
		if v.id == "" || v.id == "null" || !strings.HasPrefix(v.key, s.root+"/") {
			return nil // removeObjects' work
		}
		_, err := s.admin.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &v.key, VersionId: &v.id})
		return s3Error(err)
	})
}

func (s *site) abortUploads(ctx context.Context, bucket string) error {
	uploads, err := s.uploads(ctx, bucket)
	return errors.Join(err, each(uploads, func(u types.MultipartUpload) error {
		_, err := s.admin.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &bucket, Key: u.Key, UploadId: u.UploadId})
		return s3Error(err)
	}))
}

// uploads lists the multipart uploads below the root that are neither completed nor
// aborted.
func (s *site) uploads(ctx context.Context, bucket string) ([]types.MultipartUpload, error) {
	var found []types.MultipartUpload
	in := &s3.ListMultipartUploadsInput{Bucket: &bucket, Prefix: aws.String(s.root + "/")}
	for {
		out, err := s.admin.ListMultipartUploads(ctx, in)
		if err != nil {
			return found, fmt.Errorf("list uploads: %w", s3Error(err))
		}
		for _, u := range out.Uploads {
			if strings.HasPrefix(aws.ToString(u.Key), s.root+"/") {
				found = append(found, u)
			}
		}
		if !aws.ToBool(out.IsTruncated) || aws.ToString(out.NextKeyMarker) == "" {
			return found, nil
		}
		in.KeyMarker, in.UploadIdMarker = out.NextKeyMarker, out.NextUploadIdMarker
	}
}

// each does something with every item, eight at a time.
func each[T any](items []T, do func(T) error) error {
	errs := make([]error, len(items))
	slots := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(item)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// s3Error keeps code and status of an SDK error; its text could repeat a request.
func s3Error(err error) error {
	if err == nil {
		return nil
	}
	var status interface{ HTTPStatusCode() int }
	var api smithy.APIError
	switch {
	case errors.As(err, &status) && status.HTTPStatusCode() != 0: // 0: nothing was answered
		e := &storeError{status: status.HTTPStatusCode()}
		if errors.As(err, &api) {
			e.code = api.ErrorCode()
		}
		return e
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fmt.Errorf("%w: %s", ErrUnreachable, why(err))
}

// ErrUnreachable: the store did not answer.
var ErrUnreachable = errors.New("the store did not answer")

// ErrKeys: the store refused the broker's own keys.
var ErrKeys = errors.New("the broker's own keys are refused")

// storeError is a failed request with the broker's own keys.
type storeError struct {
	code   string
	status int
}

func (e *storeError) Error() string { return fmt.Sprintf("HTTP %d %s", e.status, plain(e.code)) }

// Is makes errors.Is(err, ErrKeys) true for what means that.
func (e *storeError) Is(target error) bool {
	return target == ErrKeys && (e.status == http.StatusForbidden || e.status == http.StatusUnauthorized)
}
