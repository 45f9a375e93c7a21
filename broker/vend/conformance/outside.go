package conformance

import (
	"context"
	"encoding/xml"
	"net/http"
	"net/url"
	"strings"
)

// mustWork is what must come of attempts inside the prefix.
const mustWork = "works"

// refusal is what must come of an out-of-scope attempt.
type refusal int

const (
	denied   refusal = iota // the caller is told that it may not
	harmless                // refused in any way, or understood literally: nothing outside has changed
)

// attempt is one row of the out-of-scope table.
type attempt struct {
	name  string
	what  string
	call  func(*site) call
	want  refusal
	lax   string
	quick bool
	// skip says why the row cannot be tried; "" = it can.
	skip func(*site) string
	// own upload id: the row needs an upload of its own inside; {id} in the query stands
	// for it.
	upload bool
	// batch: the answer is 200 and tells of each key what was done.
	batch bool
}

// caseAdvice is what is done about stores that compare names without regard to case.
const caseAdvice = "use lower-case names only in the warehouse's root; no two targets differ in case alone, because their table ids differ"

const oracleAdvice = "a worker can find out whether an object exists whose name it knows; names hold table ids and digests, no data"

const headerAdvice = "a worker may set this on its own files; block public access and website hosting on the bucket, and let no lifecycle rule select by tags"

// outsideTable is every out-of-scope attempt, the same for every kind of credential.
func outsideTable() []attempt {
	put := func(path string) func(*site) call {
		return func(s *site) call {
			return call{method: "PUT", key: s.at(s.fresh(path)), body: "attempt " + s.fresh("")}
		}
	}
	get := func(method, path, query string) func(*site) call {
		return func(s *site) call { return call{method: method, key: s.at(path), query: query} }
	}
	bucket := func(query string) func(*site) call {
		return func(*site) call { return call{method: "GET", query: query} }
	}
	rows := []attempt{
		{name: "another bucket's directory with a longer number (1, 10) cannot be written", what: "PUT …/10/snap-3/", call: put("t-7/10/snap-3/new"), quick: true},
		{name: "a snapshot with a longer number (3, 30) cannot be written", what: "PUT …/1/snap-30/", call: put("t-7/1/snap-30/new"), quick: true},
		{name: "beside the granted directory nothing can be written", what: "PUT …/1/", call: put("t-7/1/new")},
		{name: "a name that only begins like the granted directory cannot be written", what: "PUT …/1/snap-3-x", call: put("t-7/1/snap-3-x")},
		{name: "the parent cannot be written", what: "PUT …/t-7/", call: put("t-7/new"), quick: true},
		{name: "the top cannot be written", what: "PUT …/", call: put("new")},
		{name: "another session's directory cannot be written", what: "PUT …/t-8/1/snap-3/", call: put("t-8/1/snap-3/new"), quick: true},
		{name: "a sibling's file cannot be replaced", what: "PUT …/10/snap-3/f", call: func(s *site) call {
			return call{method: "PUT", key: s.outside()[0], body: "attempt " + s.fresh("")}
		}, quick: true},
		{name: "another bucket of the store cannot be written", what: "PUT in the other bucket", skip: needsOther, call: func(s *site) call {
			return call{method: "PUT", bucket: s.c.OtherBucket, key: s.in(s.fresh("new")), body: "attempt"}
		}, quick: true},
		{name: "an empty object cannot be written outside", what: "PUT …/10/snap-3/ without a body", call: func(s *site) call {
			return call{method: "PUT", key: s.at(s.fresh("t-7/10/snap-3/new"))}
		}},

		{name: "a sibling's file cannot be read", what: "GET …/10/snap-3/f", call: get("GET", "t-7/10/snap-3/f", ""), quick: true},
		{name: "a sibling's file cannot be described", what: "HEAD …/10/snap-3/f", call: get("HEAD", "t-7/10/snap-3/f", "")},
		{name: "the parent's file cannot be read", what: "GET …/t-7/f", call: get("GET", "t-7/f", "")},
		{name: "another session's file cannot be read", what: "GET …/t-8/1/snap-3/f", call: get("GET", "t-8/1/snap-3/f", ""), quick: true},
		{name: "another bucket of the store cannot be read", what: "GET in the other bucket", skip: needsOther, call: func(s *site) call {
			return call{method: "GET", bucket: s.c.OtherBucket, key: s.in("f")}
		}, quick: true},
		{name: "a version of a sibling's file cannot be read", what: "GET …/10/snap-3/f?versionId=null", call: get("GET", "t-7/10/snap-3/f", "versionId=null")},
		{name: "a sibling's attributes cannot be read", what: "GET …/10/snap-3/f?attributes", call: func(s *site) call {
			return call{method: "GET", key: s.outside()[0], query: "attributes=", header: map[string]string{"X-Amz-Object-Attributes": "ETag,ObjectSize"}}
		}},
		{name: "whether a file exists outside is not told", what: "GET of a missing …/10/snap-3/none", call: get("GET", "t-7/10/snap-3/none", ""), lax: oracleAdvice},

		{name: "the bucket cannot be listed", what: "GET ?list-type=2", call: bucket("list-type=2"), quick: true},
		{name: "the granted prefix cannot be listed", what: "GET ?list-type=2&prefix=", call: func(s *site) call {
			return call{method: "GET", query: "list-type=2&prefix=" + url.QueryEscape(s.own+"/")}
		}, quick: true},
		{name: "the bucket cannot be listed the old way", what: "GET of the bucket", call: bucket("")},
		{name: "versions cannot be listed", what: "GET ?versions", call: bucket("versions=")},
		{name: "multipart uploads cannot be listed", what: "GET ?uploads", call: bucket("uploads=")},

		{name: "the worker's own file cannot be deleted", what: "DELETE …/1/snap-3/f", call: get("DELETE", ownPath+"/f", ""), quick: true},
		{name: "a sibling's file cannot be deleted", what: "DELETE …/10/snap-3/f", call: get("DELETE", "t-7/10/snap-3/f", ""), quick: true},
		{name: "a version of the worker's own file cannot be deleted", what: "DELETE …/1/snap-3/f?versionId=null", call: get("DELETE", ownPath+"/f", "versionId=null")},
		{name: "no batch deletes files", what: "POST ?delete of an own and a sibling's file", batch: true, call: func(s *site) call {
			body := "<Delete><Object><Key>" + escaped(s.in("f")) + "</Key></Object><Object><Key>" + escaped(s.outside()[0]) + "</Key></Object></Delete>"
			return call{method: "POST", query: "delete=", body: body, header: map[string]string{"X-Amz-Checksum-Sha256": sha256Of(body), "Content-Md5": md5Of(body), "Content-Type": "application/xml"}}
		}},

		{name: "a sibling's file cannot be copied inside", what: "PUT with x-amz-copy-source …/10/snap-3/f", call: func(s *site) call {
			return copyCall(s.in(s.fresh("copy")), s.c.Bucket, s.outside()[0])
		}, quick: true},
		{name: "another session's file cannot be copied inside", what: "PUT with x-amz-copy-source …/t-8/…", call: func(s *site) call {
			return copyCall(s.in(s.fresh("copy")), s.c.Bucket, s.at("t-8/1/snap-3/f"))
		}},
		{name: "a file of another bucket cannot be copied inside", what: "PUT with x-amz-copy-source in the other bucket", skip: needsOther, call: func(s *site) call {
			return copyCall(s.in(s.fresh("copy")), s.c.OtherBucket, s.in("f"))
		}},
		{name: "an own file cannot be copied to a sibling", what: "PUT …/10/snap-3/ with x-amz-copy-source …/1/snap-3/f", call: func(s *site) call {
			return copyCall(s.at(s.fresh("t-7/10/snap-3/copy")), s.c.Bucket, s.in("f"))
		}},
		{name: "a sibling's file cannot become a part of an own one", what: "UploadPartCopy from …/10/snap-3/f", upload: true, call: func(s *site) call {
			c := copyCall(s.in("parts"), s.c.Bucket, s.outside()[0])
			c.query = "partNumber=1&uploadId={id}"
			return c
		}},

		{name: "no multipart upload can be begun outside", what: "POST …/10/snap-3/?uploads", call: func(s *site) call {
			return call{method: "POST", key: s.at(s.fresh("t-7/10/snap-3/parts")), query: "uploads="}
		}},
		{name: "a foreign multipart upload takes no part", what: "UploadPart with a sibling's key and upload id", call: foreignPart},
		{name: "a foreign multipart upload cannot be completed", what: "CompleteMultipartUpload with a sibling's key and upload id", call: func(s *site) call {
			return call{method: "POST", key: s.outside()[0], query: "uploadId=" + escapeQuery(s.upload), body: "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&quot;5ba2b0ba1c2c2b8e0d5a3e8b3f8a4e36&quot;</ETag></Part></CompleteMultipartUpload>"}
		}},
		{name: "a foreign multipart upload cannot be aborted", what: "AbortMultipartUpload with a sibling's key and upload id", call: func(s *site) call {
			return call{method: "DELETE", key: s.outside()[0], query: "uploadId=" + escapeQuery(s.upload)}
		}},
		{name: "a foreign multipart upload's parts cannot be listed", what: "ListParts with a sibling's key and upload id", call: func(s *site) call {
			return call{method: "GET", key: s.outside()[0], query: "uploadId=" + escapeQuery(s.upload)}
		}},
		{name: "a foreign upload id under an own name reaches no foreign upload", what: "UploadPart with an own key and a sibling's upload id", want: harmless, call: func(s *site) call {
			c := foreignPart(s)
			c.key = s.in("parts")
			return c
		}},
		{name: "a foreign upload id under an own name aborts no foreign upload", what: "AbortMultipartUpload with an own key and a sibling's upload id", want: harmless, call: func(s *site) call {
			return call{method: "DELETE", key: s.in("parts"), query: "uploadId=" + escapeQuery(s.upload)}
		}},

		{name: "a sibling cannot be tagged", what: "PUT …/10/snap-3/f?tagging", call: func(s *site) call { return taggingCall(s.outside()[0]) }},
		{name: "an own file cannot be tagged", what: "PUT …/1/snap-3/f?tagging", call: func(s *site) call { return taggingCall(s.in("f")) }, lax: headerAdvice},
		{name: "a sibling's tags cannot be read", what: "GET …/10/snap-3/f?tagging", call: get("GET", "t-7/10/snap-3/f", "tagging=")},
		{name: "a sibling's ACL cannot be read", what: "GET …/10/snap-3/f?acl", call: get("GET", "t-7/10/snap-3/f", "acl=")},
		{name: "a sibling's ACL cannot be set", what: "PUT …/10/snap-3/f?acl", call: func(s *site) call {
			return call{method: "PUT", key: s.outside()[0], query: "acl=", header: map[string]string{"X-Amz-Acl": "private"}}
		}},
		{name: "an own file's ACL cannot be set", what: "PUT …/1/snap-3/f?acl", call: func(s *site) call {
			return call{method: "PUT", key: s.in("f"), query: "acl=", header: map[string]string{"X-Amz-Acl": "private"}}
		}, lax: headerAdvice},
		{name: "a new file carries no ACL", what: "PUT inside with x-amz-acl: public-read", call: headerCall("X-Amz-Acl", "public-read"), want: harmless, lax: headerAdvice},
		{name: "a new file carries no tags", what: "PUT inside with x-amz-tagging", call: headerCall("X-Amz-Tagging", "a=b"), want: harmless, lax: headerAdvice},
		{name: "the bucket's ACL cannot be read", what: "GET ?acl", call: bucket("acl=")},
		{name: "the bucket's policy cannot be read", what: "GET ?policy", call: bucket("policy=")},
		{name: "the bucket's versioning cannot be read", what: "GET ?versioning", call: bucket("versioning="), lax: "it tells nothing but the bucket's settings"},
	}
	return append(rows, pathTable()...)
}

// pathTable are names that one layer could read as inside and another as outside.
func pathTable() []attempt {
	var rows []attempt
	for _, p := range []struct{ name, path string }{
		{"dots up (..) lead nowhere", ownPath + "/../../10/snap-3/"},
		{"escaped dots up (%2e%2e) lead nowhere", ownPath + "/%2e%2e/%2e%2e/10/snap-3/"},
		{"dots up with escaped slashes (..%2f) lead nowhere", ownPath + "/..%2f..%2f10%2fsnap-3%2f"},
		{"dots up escaped twice (%252e%252e) lead nowhere", ownPath + "/%252e%252e/%252e%252e/10/snap-3/"},
		{"slashes escaped twice (%252f) lead nowhere", ownPath + "/..%252f..%252f10%252fsnap-3%252f"},
		{"backslashes (%5c) lead nowhere", ownPath + "/..%5c..%5c10%5csnap-3%5c"},
		{"a dot segment leads nowhere", "t-7/10/./snap-3/"},
		{"two slashes lead nowhere", "t-7//10/snap-3/"},
		{"dots down from outside lead nowhere", "t-7/10/snap-3/../../1/snap-30/"},
		{"an escaped letter of a sibling's name is the sibling's name", "t-7/1%30/snap-3/"},
		{"an escaped slash is a slash of a sibling's name", "t-7%2f10%2fsnap-3%2f"},
		{"a NUL in a name cuts nothing off", "t-7/10/snap-3/%00/../../../1/snap-3/"},
		{"a semicolon hides nothing", ownPath + "/..;/..;/10/snap-3/"},
	} {
		rows = append(rows, attempt{name: p.name, what: "PUT /" + p.path + "… as it stands here, on the wire", want: harmless, call: func(s *site) call {
			return call{method: "PUT", raw: escape(s.root) + "/" + p.path + s.fresh("new"), body: "attempt " + s.fresh("")}
		}})
	}
	for _, p := range []struct{ name, path string }{
		{"dots up (..) read nothing", ownPath + "/../../10/snap-3/f"},
		{"escaped dots up (%2e%2e) read nothing", ownPath + "/%2e%2e/%2e%2e/10/snap-3/f"},
		{"dots up with escaped slashes (..%2f) read nothing", ownPath + "/..%2f..%2f10%2fsnap-3%2ff"},
		{"dots up escaped twice (%252e%252e) read nothing", ownPath + "/%252e%252e/%252e%252e/10/snap-3/f"},
	} {
		rows = append(rows, attempt{name: p.name, what: "GET /" + p.path + " as it stands here, on the wire", want: harmless, call: func(s *site) call {
			return call{method: "GET", raw: escape(s.root) + "/" + p.path}
		}})
	}
	return append(rows,
		attempt{name: "a name that differs only in case cannot be written", what: "PUT …/1/SNAP-3/", lax: caseAdvice, call: func(s *site) call {
			return call{method: "PUT", key: s.at(s.fresh("t-7/1/SNAP-3/new")), body: "attempt"}
		}},
		attempt{name: "a parent that differs only in case cannot be written", what: "PUT …/T-7/1/snap-3/", lax: caseAdvice, call: func(s *site) call {
			return call{method: "PUT", key: s.at(s.fresh("T-7/1/snap-3/new")), body: "attempt"}
		}},
		attempt{name: "a wildcard in a name is a character", what: "PUT …/*/snap-3/", call: func(s *site) call {
			return call{method: "PUT", key: s.at(s.fresh("t-7/*/snap-3/new")), body: "attempt"}
		}},
	)
}

func needsOther(s *site) string {
	if s.c.OtherBucket == "" {
		return "no other bucket was named"
	}
	return ""
}

func copyCall(to, bucket, from string) call {
	return call{method: "PUT", key: to, header: map[string]string{"X-Amz-Copy-Source": "/" + bucket + "/" + escape(from)}}
}

func taggingCall(key string) call {
	body := "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
	return call{method: "PUT", key: key, query: "tagging=", body: body, header: map[string]string{"Content-Md5": md5Of(body), "Content-Type": "application/xml"}}
}

func headerCall(name, value string) func(*site) call {
	return func(s *site) call {
		return call{method: "PUT", key: s.in(s.fresh("header")), body: "attempt", header: map[string]string{name: value}}
	}
}

func foreignPart(s *site) call {
	return call{method: "PUT", key: s.outside()[0], query: "partNumber=2&uploadId=" + escapeQuery(s.upload), body: "attempt"}
}

func escaped(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

// outsideChecks is the table for one mode.
func outsideChecks(m Mode) []check {
	var out []check
	for _, row := range outsideTable() {
		must := "is refused, and nothing outside has changed"
		if row.want == harmless {
			must = "nothing outside has changed"
		}
		out = append(out, check{mode: m, name: row.name, attempts: row.what, must: must, lax: row.lax, quick: row.quick,
			run: func(ctx context.Context, s *site) finding { return s.try(ctx, m, row) }})
	}
	return out
}

// try makes one attempt and looks what came of it.
func (s *site) try(ctx context.Context, m Mode, row attempt) finding {
	if row.skip != nil {
		if why := row.skip(s); why != "" {
			return skipped("%s", why)
		}
	}
	a, err := s.actor(ctx, m)
	if err != nil {
		return failed("%v", err)
	}
	c := row.call(s)
	if row.upload {
		id, err := begin(ctx, a, c.key)
		if err != nil {
			return skipped("no upload of its own: %v", err)
		}
		c.query = strings.ReplaceAll(c.query, "{id}", escapeQuery(id))
	}
	got, err := a.do(ctx, c)
	if err != nil {
		return failed("%v", err)
	}
	harm, err := s.harm(ctx)
	switch {
	case err != nil:
		return failed("what came of it could not be seen: %v", err)
	case harm != "":
		return failed("%v: %s", got, harm)
	case c.method == http.MethodGet && got.ok() && strings.Contains(string(got.body), "content of "):
		return failed("%v: it was read", got)
	}
	return judgeAnswer(row, got)
}

// judgeAnswer is for an attempt that did no visible harm.
func judgeAnswer(row attempt, got answer) finding {
	switch {
	case got.denied():
		return passed("%v", got)
	case got.unknown():
		return finding{NotSupported, got.String()}
	case row.want == harmless && (got.refused() || row.lax == ""):
		return passed("%v", got)
	case got.refused():
		return failed("%v instead of a denial", got)
	case row.batch && got.ok() && !strings.Contains(string(got.body), "<Deleted") && strings.Contains(string(got.body), "AccessDenied"):
		return passed("HTTP 200, AccessDenied for each")
	case got.ok():
		return failed("%v: it was done", got)
	}
	return failed("%v, which is no clear answer", got)
}
