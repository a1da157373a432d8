package credential

import (
	"context"
	"time"
)

// sync renews the token if that is due. It also makes sure that the files exist, and checks whether
// the server accepts the kubeconfig that the plugins use.
func (k *Keeper) sync(ctx context.Context) error {
	ca, err := k.Client.CA()
	if err != nil {
		return err
	}
	if err := k.renew(ctx); err != nil {
		return err
	}
	if err := k.write(ctx, ca); err != nil {
		return err
	}
	return k.check(ctx, ca)
}

// renew requests a new token if that is due.
func (k *Keeper) renew(ctx context.Context) error {
	// The monotonic clock stops while the host is suspended, and the wall clock may be set. So the
	// token is renewed as soon as one of the two clocks says that it is due.
	if asked := time.Now(); !asked.Before(k.fresh) || !asked.Round(0).Before(k.fresh.Round(0)) {
		token, err := k.Client.Token(ctx, k.Namespace, k.Account, k.Node, k.Lifetime)
		if err != nil {
			return err
		}
		if unbound := token.Unbound != nil; unbound != k.unbound {
			k.unbound = unbound
			if unbound {
				k.Log.Warn("plugin's token is not bound to the Node", "node", k.Node, "err", token.Unbound)
			}
		}
		life := token.Expires.Sub(asked)
		if life <= 0 || life > k.Lifetime { // the server's clock differs from this host's clock
			life = k.Lifetime
		}
		k.token, k.fresh = token.Value, asked.Add(life/2)
		k.mu.Lock()
		k.ends = asked.Add(life)
		k.mu.Unlock()
	}
	return nil
}
