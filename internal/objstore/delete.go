package objstore

import (
	"context"
	"errors"
	"fmt"
)

// DeleteBelow deletes every object below a directory key but one; except may be empty.
// Names that Delete refuses to touch (whoever has keys of the service may give such
// names) stay, and are returned: they must not keep the rest from being deleted.
func DeleteBelow(ctx context.Context, s Store, dir, except string) (left []string, err error) {
	for info, err := range s.List(ctx, dir+"/") {
		if err != nil {
			return left, fmt.Errorf("list %s: %w", dir, err)
		}
		if info.Key == except {
			continue
		}
		err := s.Delete(ctx, info.Key)
		if errors.Is(err, ErrInvalidKey) {
			left = append(left, info.Key)
		} else if err != nil {
			return left, fmt.Errorf("delete %s: %w", info.Key, err)
		}
	}
	return left, nil
}
