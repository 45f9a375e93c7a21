package policy

import (
	"context"
	"fmt"

	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/util"
)

// treeStore lets rules read a document. It cannot be written to, so that whoever
// begins to decide by a document ends by it. Rules that name the keys they look for
// read single values; rules that go over a whole object read it as a map that is
// made once for each document.
type treeStore struct {
	storage.WritesNotSupported
	storage.PolicyNotSupported
	storage.TriggersNotSupported
	document *object
}

var _ storage.Store = (*treeStore)(nil)

// snapshot is the one transaction there is: documents do not change.
type snapshot struct{}

// ID implements storage.Transaction.
func (snapshot) ID() uint64 { return 1 }

// NewTransaction implements storage.Store.
func (s *treeStore) NewTransaction(_ context.Context, params ...storage.TransactionParams) (storage.Transaction, error) {
	if len(params) > 0 && params[0].Write {
		return nil, &storage.Error{Code: storage.WritesNotSupportedErr, Message: "policy data are changed by a new revision"}
	}
	return snapshot{}, nil
}

// Read implements storage.Store.
func (s *treeStore) Read(_ context.Context, _ storage.Transaction, path storage.Path) (any, error) {
	var v any = s.document
	for _, key := range path {
		ok := false
		switch at := v.(type) {
		case *object:
			v, ok = at.get(key)
		case map[string]any:
			v, ok = at[key]
		case []any:
			var i int
			if i, ok = index(key, len(at)); ok {
				v = at[i]
			}
		}
		if !ok {
			return nil, &storage.Error{Code: storage.NotFoundErr, Message: fmt.Sprintf("%v: document does not exist", path)}
		}
	}
	return decodedValue(v), nil
}

// index reads an array index as OPA's own store does.
func index(key string, length int) (int, bool) {
	i, ok := util.Atoi(key)
	return i, ok && i >= 0 && i < length
}

// Commit implements storage.Store.
func (s *treeStore) Commit(context.Context, storage.Transaction) error { return nil }

// Truncate implements storage.Store.
func (s *treeStore) Truncate(context.Context, storage.Transaction, storage.TransactionParams, storage.Iterator) error {
	return &storage.Error{Code: storage.WritesNotSupportedErr, Message: "policy data are changed by a new revision"}
}

// Abort implements storage.Store.
func (s *treeStore) Abort(context.Context, storage.Transaction) {}
