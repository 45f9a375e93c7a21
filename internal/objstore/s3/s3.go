// Package s3 is an object store in a bucket of Amazon S3 or a service that speaks
// its protocol: the key "a/b" is the object Prefix/a/b.
//
// What it promises beyond package objstore, and how:
//
//   - Write-once and replacement are the store's own conditional writes
//     (If-None-Match: *, If-Match) on PutObject and CompleteMultipartUpload. A store
//     that ignores these headers cannot keep the promise, and this package cannot
//     tell: objstore.Probe does.
//   - Copy is done by the service (CopyObject, and UploadPartCopy above CopySize), of
//     one version of the source (If-Match), and marked and looked up as a Put is.
//   - Keys that the service calls expired are renewed once for each request.
//   - Nothing wrong becomes visible. Each request body is signed with its SHA-256 and
//     carries it as checksum, so the store refuses what the network changed; the
//     caller's digest and size are checked before PutObject or CompleteMultipartUpload
//     is sent.
//   - A lost answer is looked up. Each Put leaves a random number in the object's
//     metadata (PutMetadata). When a request fails without saying what was stored, or a
//     repeated one finds the name taken, HeadObject tells whether the object is this
//     Put's own. Nobody else's object, even of equal content, is mistaken for it.
//   - Memory is bounded: one part for each running Put and Concurrency parts for all
//     of them together; ReadAhead chunks for each open reader.
//   - A multipart upload that fails is aborted. One whose creation was never answered,
//     or whose process died, stays: a lifecycle rule of the bucket
//     (AbortIncompleteMultipartUpload) removes it.
//   - No request is logged, no redirect followed, no environment variable or shared
//     configuration file read, and no credential looked for that was not given.
//   - Errors are of type *Error and name what an operator needs; never a header, a URL
//     or a secret.
//
// Info.SHA256 is what the store has verified and kept, by Head of objects written in
// one request; objects of several parts have none (S3 keeps a digest of digests).
// ModTime is left zero by Put. ETags are S3's: of one-part objects they depend on
// content only, so what is compared and swapped must not return to old content.
//
// A reader gets the version it opened or an error of kind objstore.ErrPrecondition,
// never a mixture; content up to one chunk is read at once and cannot be lost.
//
// Keys that may not list get 403 instead of 404 for what is missing. Put copes;
// Head and Get return ErrDenied.
package s3

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Limits of S3.
const (
	MinPartSize = 5 << 20
	MaxPartSize = 5 << 30
	MaxParts    = 10_000
	MaxCopySize = 5 << 30 // of one request
)

// PutMetadata is the user-defined metadata in which a Put marks its object.
const PutMetadata = "sluice-put"

// Config of a store.
type Config struct {
	Bucket string // mandatory
	// Prefix of all keys, without slashes at its ends; empty means the whole bucket.
	Prefix string
	Region string // mandatory; of the bucket
	// Endpoint is the base URL of a service other than AWS; empty means AWS.
	Endpoint string
	// PathStyle puts the bucket into the path and not into the host name: most
	// services other than AWS need it.
	PathStyle bool
	// Credentials are mandatory: nothing is ever looked for. aws.AnonymousCredentials
	// and those of package aws/config are ways to give them. The store caches them until
	// they expire; when the service says that they have, it asks once more for each
	// request, and invalidates an aws.CredentialsCache first.
	Credentials aws.CredentialsProvider
	// Signer, when set, signs the requests instead of SigV4 with Credentials, which
	// are only handed to it.
	Signer awss3.HTTPSignerV4
	// KMSKey encrypts new objects with this key (aws:kms); empty means as the bucket is
	// configured.
	KMSKey string
	// Unordered is for services that list directory by directory instead of in key
	// order (SeaweedFS): long listings are then read to their end and sorted.
	Unordered bool

	PartSize    int64 // of uploads; 0 means 8 MiB. Larger for objects of known size over 80 GB
	Concurrency int   // parts uploaded at once, by all Puts together; 0 means 5
	CopySize    int64 // most that one request copies, of an object or a part; 0 means 256 MiB
	ChunkSize   int64 // of reads; 0 means 4 MiB
	ReadAhead   int   // chunks fetched at once for one reader; 0 means 4

	Attempts   int           // of one request; 0 means 5
	MaxBackoff time.Duration // between attempts; 0 means 5 s
	// Stall ends an attempt in which no byte has moved for so long; 0 means a minute.
	Stall time.Duration
	// HTTPClient sends the requests; nil means one of the store's own. A given one must
	// not follow redirects.
	HTTPClient aws.HTTPClient
}

// Store implements objstore.Store. It is safe for concurrent use.
type Store struct {
	client    *awss3.Client
	creds     *keyring
	bucket    string
	prefix    string // "" or with a trailing slash
	kmsKey    string
	unordered bool
	idle      interface{ CloseIdleConnections() }
	backoff   retry.BackoffDelayer

	partSize, chunkSize, copySize int64
	readAhead, attempts           int

	slots  chan struct{} // one for each part on its way
	parts  sync.Pool     // of *[]byte with partSize bytes
	chunks sync.Pool     // of *[]byte with chunkSize bytes
}

var _ objstore.Store = (*Store)(nil)

var bucketName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$`)

// Open checks the configuration. It sends no request: what the credentials may do
// differs between callers.
func Open(c Config) (*Store, error) {
	setDefaults(&c)
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("open object store s3://%s: %w", c.Bucket, err)
	}
	s := &Store{
		bucket: c.Bucket, prefix: c.Prefix, kmsKey: c.KMSKey, unordered: c.Unordered, partSize: c.PartSize, chunkSize: c.ChunkSize,
		copySize: c.CopySize, readAhead: c.ReadAhead, attempts: c.Attempts, slots: make(chan struct{}, c.Concurrency),
		backoff: retry.NewExponentialJitterBackoff(c.MaxBackoff), creds: newKeyring(c.Credentials),
	}
	if s.prefix != "" {
		s.prefix += "/"
	}
	if c.HTTPClient == nil {
		own := newHTTPClient(c.Concurrency + c.ReadAhead)
		c.HTTPClient, s.idle = own, own
	}
	o := awss3.Options{
		Region: c.Region, UsePathStyle: c.PathStyle, Credentials: s.creds, HTTPSignerV4: c.Signer,
		APIOptions: []func(*middleware.Stack) error{s.creds.renewKeys}, HTTPClient: &stallClient{c.HTTPClient, c.Stall}, Retryer: newRetryer(c.Attempts, s.backoff),
		Logger: logging.Nop{}, DisableMultiRegionAccessPoints: true, DisableS3ExpressSessionAuth: aws.Bool(true),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		// Expect: 100-continue costs a second per part at services that do not answer it.
		ContinueHeaderThresholdBytes: -1,
	}
	if c.Endpoint != "" {
		o.BaseEndpoint = &c.Endpoint
	}
	s.client = awss3.New(o)
	return s, nil
}

func setDefaults(c *Config) {
	for _, d := range []struct {
		field *int64
		value int64
	}{{&c.PartSize, 8 << 20}, {&c.ChunkSize, 4 << 20}, {&c.CopySize, 256 << 20}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	for _, d := range []struct {
		field *int
		value int
	}{{&c.Concurrency, 5}, {&c.ReadAhead, 4}, {&c.Attempts, 5}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = 5 * time.Second
	}
	if c.Stall == 0 {
		c.Stall = time.Minute
	}
}

func (c *Config) check() error {
	switch {
	case !bucketName.MatchString(c.Bucket):
		return errors.New("not a bucket name")
	case c.Region == "":
		return errors.New("the region is missing; services that have none take us-east-1")
	case c.Credentials == nil:
		return errors.New("credentials are missing; they are never looked for in the environment")
	case c.PartSize < MinPartSize || c.PartSize > MaxPartSize:
		return fmt.Errorf("part size %d is not within %d and %d", c.PartSize, MinPartSize, int64(MaxPartSize))
	case c.CopySize < MinPartSize || c.CopySize > MaxCopySize:
		return fmt.Errorf("copy size %d is not within %d and %d", c.CopySize, MinPartSize, int64(MaxCopySize))
	case c.ChunkSize < 1 || c.Concurrency < 1 || c.ReadAhead < 1 || c.Attempts < 1 || c.MaxBackoff < 0 || c.Stall < 0:
		return errors.New("a size, count or duration is negative")
	}
	if c.Prefix != "" {
		if err := objstore.CheckKey(c.Prefix); err != nil {
			return fmt.Errorf("prefix: %w", err)
		}
	}
	if c.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("the endpoint is not a plain http or https URL") // it is not repeated: it may hold a password
	}
	return nil
}

// newRetryer retries what may pass: throttling, 5xx, broken connections, and the 409
// of a conditional write that met another one. There is no client-wide retry budget:
// each request has its attempts.
func newRetryer(attempts int, backoff retry.BackoffDelayer) aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.Backoff, o.RateLimiter = attempts, backoff, ratelimit.None
		o.Retryables = append(o.Retryables,
			retry.RetryableErrorCode{Codes: map[string]struct{}{"ConditionalRequestConflict": {}, "OperationAborted": {}, "InternalError": {}, "ServiceUnavailable": {}}},
			retry.RetryableErrorCode{Codes: map[string]struct{}{"BadDigest": {}, "XAmzContentSHA256Mismatch": {}, "XAmzContentChecksumMismatch": {}}}, // the network's doing
			retry.RetryableHTTPStatusCode{Codes: map[int]struct{}{429: {}}})
	})
}

// Close gives idle connections back. Requests under way end as they will.
func (s *Store) Close() error {
	if s.idle != nil {
		s.idle.CloseIdleConnections()
	}
	return nil
}

// checkKey is objstore.CheckKey for the key with its prefix.
func (s *Store) checkKey(key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	if n := len(s.prefix) + len(key); n > objstore.MaxKeyLength {
		return fmt.Errorf("%w: %d bytes with the store's prefix, at most %d", objstore.ErrInvalidKey, n, objstore.MaxKeyLength)
	}
	return nil
}

func (s *Store) full(key string) *string { return aws.String(s.prefix + key) }

// Head implements objstore.Reader.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := errors.Join(ctx.Err(), s.checkKey(key)); err != nil {
		return objstore.Info{}, fmt.Errorf("head %q: %w", key, err)
	}
	info, _, err := s.head(ctx, key)
	return info, err
}

// head also returns the mark of the Put that made the object.
func (s *Store) head(ctx context.Context, key string) (objstore.Info, string, error) {
	out, err := s.client.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: &s.bucket, Key: s.full(key), ChecksumMode: types.ChecksumModeEnabled})
	if err != nil {
		return objstore.Info{}, "", s.fail(ctx, "head", key, err)
	}
	info := objstore.Info{
		Key: key, Size: aws.ToInt64(out.ContentLength), ETag: bareETag(out.ETag), ModTime: aws.ToTime(out.LastModified),
	}
	if !strings.Contains(info.ETag, "-") && out.ChecksumType != types.ChecksumTypeComposite {
		info.SHA256 = hexDigest(aws.ToString(out.ChecksumSHA256))
	}
	return info, out.Metadata[PutMetadata], nil
}

// bareETag is an entity tag without its quotes, which some services leave out.
func bareETag(tag *string) string { return strings.Trim(aws.ToString(tag), `"`) }

func quotedETag(tag string) *string { return aws.String(`"` + tag + `"`) }

// hexDigest turns a checksum header into hex digits, or into "" when it is not a
// SHA-256.
func hexDigest(b64 string) string {
	b, err := base64.StdEncoding.DecodeString(b64)
	if err != nil || len(b) != 32 {
		return ""
	}
	return hex.EncodeToString(b)
}

// List implements objstore.Store. Folder markers (empty objects whose name ends in a
// slash), which consoles make, are left out. A listing that fits into one page, or
// whose first page is out of order, is sorted here.
//
// Whoever has keys of the service for one directory may give objects there any name, so
// a name that CheckKey refuses must not end the listing: nobody could delete it then,
// nor anything beside it.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if err := checkListPrefix(prefix); err != nil {
			yield(objstore.Info{}, fmt.Errorf("list %q: %w", prefix, err))
			return
		}
		if err := s.list(ctx, prefix, func(i objstore.Info) bool { return yield(i, nil) }); err != nil {
			yield(objstore.Info{}, err)
		}
	}
}

// list calls yield until that returns false, which is no error.
func (s *Store) list(ctx context.Context, prefix string, yield func(objstore.Info) bool) error {
	pages := awss3.NewListObjectsV2Paginator(s.client,
		// XML has no way to write control characters, which names may have.
		&awss3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: s.full(prefix), EncodingType: types.EncodingTypeUrl},
		func(o *awss3.ListObjectsV2PaginatorOptions) { o.StopOnDuplicateToken = true })
	byKey := func(a, b objstore.Info) int { return strings.Compare(a.Key, b.Key) }
	var infos []objstore.Info
	sorting, last := s.unordered, ""
	for first := true; pages.HasMorePages(); first = false {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return s.fail(ctx, "list", prefix, err)
		}
		if infos, err = s.listed(infos, page); err != nil {
			return fmt.Errorf("list s3://%s/%s%s: %w", s.bucket, s.prefix, prefix, err)
		}
		sorting = sorting || first && !slices.IsSortedFunc(infos, byKey)
		if pages.HasMorePages() && sorting {
			continue
		}
		if !pages.HasMorePages() && (sorting || first) {
			slices.SortFunc(infos, byKey)
		}
		for _, info := range infos {
			if info.Key <= last {
				return fmt.Errorf("list s3://%s/%s%s: %w: it lists %q after %q: configure it as unordered", s.bucket, s.prefix, prefix, ErrConfig, info.Key, last)
			}
			if last = info.Key; !yield(info) {
				return nil
			}
		}
		infos = infos[:0]
	}
	return nil
}

// listed appends the objects of a page.
func (s *Store) listed(infos []objstore.Info, page *awss3.ListObjectsV2Output) ([]objstore.Info, error) {
	for _, o := range page.Contents {
		name := aws.ToString(o.Key)
		if page.EncodingType == types.EncodingTypeUrl {
			var err error
			if name, err = url.QueryUnescape(name); err != nil {
				return nil, fmt.Errorf("the service lists %.300q, which is not URL-encoded although it says so", aws.ToString(o.Key))
			}
		}
		key, ok := strings.CutPrefix(name, s.prefix)
		if !ok {
			return nil, fmt.Errorf("the service lists %q, which does not have the prefix", name)
		}
		if strings.HasSuffix(name, "/") && aws.ToInt64(o.Size) == 0 {
			continue
		}
		infos = append(infos, objstore.Info{Key: key, Size: aws.ToInt64(o.Size), ETag: bareETag(o.ETag), ModTime: aws.ToTime(o.LastModified)})
	}
	return infos, nil
}

func checkListPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	dir, ok := strings.CutSuffix(prefix, "/")
	if !ok {
		return fmt.Errorf("%w: prefix %q does not end in a slash", objstore.ErrInvalidKey, prefix)
	}
	return objstore.CheckKey(dir)
}

// Delete implements objstore.Store. It takes most names that List yields, and sends them
// as they are. Those with empty or dot segments and backslashes are refused: a service
// that cleans paths would delete somebody else's object, or a whole folder (SeaweedFS
// takes a\b for a/b).
func (s *Store) Delete(ctx context.Context, key string) error {
	err := ctx.Err()
	if n := len(s.prefix) + len(key); err == nil && n > objstore.MaxKeyLength {
		err = fmt.Errorf("%w: %d bytes with the store's prefix, more than %d", objstore.ErrInvalidKey, n, objstore.MaxKeyLength)
	}
	for segment := range strings.SplitSeq(key, "/") {
		if err == nil && (segment == "" || segment == "." || segment == ".." || strings.Contains(segment, `\`)) {
			err = fmt.Errorf("%w: a service may take it for another one", objstore.ErrInvalidKey)
		}
	}
	if err != nil {
		return fmt.Errorf("delete %.300q: %w", key, err)
	}
	_, err = s.client.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &s.bucket, Key: s.full(key)})
	if err == nil {
		return nil
	}
	if err := s.fail(ctx, "delete", key, err); !errors.Is(err, objstore.ErrNotFound) {
		return err
	}
	return nil
}

// pooled takes a buffer of a size from a pool.
func pooled(pool *sync.Pool, size int64) []byte {
	if b, ok := pool.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, size)
}

// giveBack returns a buffer to its pool, unless it is a small one.
func giveBack(pool *sync.Pool, b []byte, size int64) {
	if int64(cap(b)) == size {
		b = b[:0]
		pool.Put(&b)
	}
}

var _ io.Closer = (*Store)(nil)
