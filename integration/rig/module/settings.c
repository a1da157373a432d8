// SPDX-License-Identifier: GPL-2.0
/*
 * fakerdma - what ethtool sets on a NIC. It is kept, shown, and does nothing:
 * like a real NIC's it stays with the NIC wherever it goes.
 */
#include <linux/ethtool.h>
#include <linux/netdevice.h>

#include "fakerdma.h"

#define FK_MOST_RINGS 8192

void fk_settings_init(struct net_device *nd)
{
	struct fk_settings *s = &fk_nic_of(nd)->settings;
	int i;

	s->speed = SPEED_200000;
	s->rings = 1024;
	s->channels = FK_CHANNELS;
	s->usecs = 8;
	s->frames = 128;
	s->pause_rx = s->pause_tx = true;
	s->fec = ETHTOOL_FEC_RS;
	s->copybreak = 256;
	s->eee = true;
	s->lpi_timer = 30;
	s->wol = WAKE_MAGIC;
	s->ets.ets_cap = IEEE_8021QAZ_MAX_TCS;
	s->dcbx = DCB_CAP_DCBX_HOST | DCB_CAP_DCBX_VER_IEEE;
	s->trusts = 1;
	s->trust[0] = DCB_APP_SEL_PCP;
	s->buffers.total_size = 8 << 15;
	for (i = 0; i < DCBX_MAX_BUFFERS; i++)
		s->buffers.buffer_size[i] = 1 << 15;
	for (i = 0; i < FK_INDIR; i++)
		s->indir[i] = ethtool_rxfh_indir_default(i, FK_CHANNELS);
	for (i = 0; i < FK_KEY; i++)
		s->key[i] = i;
	for (i = 0; i < ARRAY_SIZE(s->fields); i++)
		s->fields[i] = RXH_IP_SRC | RXH_IP_DST;
}

static struct fk_settings *of(struct net_device *nd)
{
	return &fk_nic_of(nd)->settings;
}

static void fk_get_rings(struct net_device *nd, struct ethtool_ringparam *r,
			 struct kernel_ethtool_ringparam *k, struct netlink_ext_ack *ack)
{
	r->rx_max_pending = r->tx_max_pending = FK_MOST_RINGS;
	r->rx_pending = r->tx_pending = of(nd)->rings;
}

static int fk_set_rings(struct net_device *nd, struct ethtool_ringparam *r,
			struct kernel_ethtool_ringparam *k, struct netlink_ext_ack *ack)
{
	of(nd)->rings = r->rx_pending;
	return 0;
}

static void fk_get_channels(struct net_device *nd, struct ethtool_channels *c)
{
	c->max_combined = FK_CHANNELS;
	c->combined_count = of(nd)->channels;
}

static int fk_set_channels(struct net_device *nd, struct ethtool_channels *c)
{
	struct fk_settings *s = of(nd);
	int i, err = netif_set_real_num_queues(nd, c->combined_count, c->combined_count);

	if (err)
		return err;
	s->channels = c->combined_count;
	if (!netif_is_rxfh_configured(nd))
		for (i = 0; i < FK_INDIR; i++)
			s->indir[i] = ethtool_rxfh_indir_default(i, s->channels);
	return 0;
}

static int fk_get_coalesce(struct net_device *nd, struct ethtool_coalesce *c,
			   struct kernel_ethtool_coalesce *k, struct netlink_ext_ack *ack)
{
	c->rx_coalesce_usecs = of(nd)->usecs;
	c->rx_max_coalesced_frames = of(nd)->frames;
	c->use_adaptive_rx_coalesce = of(nd)->adaptive;
	return 0;
}

static int fk_set_coalesce(struct net_device *nd, struct ethtool_coalesce *c,
			   struct kernel_ethtool_coalesce *k, struct netlink_ext_ack *ack)
{
	of(nd)->usecs = c->rx_coalesce_usecs;
	of(nd)->frames = c->rx_max_coalesced_frames;
	of(nd)->adaptive = c->use_adaptive_rx_coalesce;
	return 0;
}

static void fk_get_pause(struct net_device *nd, struct ethtool_pauseparam *p)
{
	p->rx_pause = of(nd)->pause_rx;
	p->tx_pause = of(nd)->pause_tx;
}

static int fk_set_pause(struct net_device *nd, struct ethtool_pauseparam *p)
{
	if (p->autoneg)
		return -EINVAL;
	of(nd)->pause_rx = p->rx_pause;
	of(nd)->pause_tx = p->tx_pause;
	return 0;
}

static int fk_get_fec(struct net_device *nd, struct ethtool_fecparam *f)
{
	f->fec = of(nd)->fec;
	f->active_fec = of(nd)->fec;
	return 0;
}

static int fk_set_fec(struct net_device *nd, struct ethtool_fecparam *f)
{
	of(nd)->fec = f->fec;
	return 0;
}

/* The second flag stays when it is set: a setting that nobody can take back. */
static const char fk_flags[][ETH_GSTRING_LEN] = { "rx_striding", "fused" };

static int fk_sset_count(struct net_device *nd, int set)
{
	return set == ETH_SS_PRIV_FLAGS ? ARRAY_SIZE(fk_flags) : -EOPNOTSUPP;
}

static void fk_strings(struct net_device *nd, u32 set, u8 *data)
{
	if (set == ETH_SS_PRIV_FLAGS)
		memcpy(data, fk_flags, sizeof(fk_flags));
}

static u32 fk_get_flags(struct net_device *nd)
{
	return of(nd)->flags;
}

static int fk_set_flags(struct net_device *nd, u32 flags)
{
	if (of(nd)->flags & ~flags & 2)
		return -EBUSY;
	of(nd)->flags = flags;
	return 0;
}

static u32 fk_get_level(struct net_device *nd)
{
	return of(nd)->level;
}

static void fk_set_level(struct net_device *nd, u32 level)
{
	of(nd)->level = level;
}

static u32 fk_key_size(struct net_device *nd)
{
	return FK_KEY;
}

static u32 fk_indir_size(struct net_device *nd)
{
	return FK_INDIR;
}

static int fk_get_rss(struct net_device *nd, struct ethtool_rxfh_param *p)
{
	p->hfunc = ETH_RSS_HASH_TOP;
	if (p->indir)
		memcpy(p->indir, of(nd)->indir, sizeof(of(nd)->indir));
	if (p->key)
		memcpy(p->key, of(nd)->key, sizeof(of(nd)->key));
	return 0;
}

static int fk_set_rss(struct net_device *nd, struct ethtool_rxfh_param *p,
		      struct netlink_ext_ack *ack)
{
	if (p->indir)
		memcpy(of(nd)->indir, p->indir, sizeof(of(nd)->indir));
	if (p->key)
		memcpy(of(nd)->key, p->key, sizeof(of(nd)->key));
	return 0;
}

static int fk_get_fields(struct net_device *nd, struct ethtool_rxfh_fields *f)
{
	if (f->flow_type >= ARRAY_SIZE(of(nd)->fields))
		return -EINVAL;
	f->data = of(nd)->fields[f->flow_type];
	return 0;
}

static int fk_set_fields(struct net_device *nd, const struct ethtool_rxfh_fields *f,
			 struct netlink_ext_ack *ack)
{
	if (f->flow_type >= ARRAY_SIZE(of(nd)->fields))
		return -EINVAL;
	of(nd)->fields[f->flow_type] = f->data;
	return 0;
}

static int fk_get_rxnfc(struct net_device *nd, struct ethtool_rxnfc *c, u32 *locs)
{
	struct fk_settings *s = of(nd);
	int i, n = 0;

	switch (c->cmd) {
	case ETHTOOL_GRXRINGS:
		c->data = s->channels;
		return 0;
	case ETHTOOL_GRXCLSRLCNT:
		for (i = 0; i < FK_RULES; i++)
			n += s->used[i];
		c->rule_cnt = n;
		c->data = FK_RULES;
		return 0;
	case ETHTOOL_GRXCLSRLALL:
		for (i = 0; i < FK_RULES && n < c->rule_cnt; i++)
			if (s->used[i])
				locs[n++] = i;
		c->rule_cnt = n;
		return 0;
	case ETHTOOL_GRXCLSRULE:
		if (c->fs.location >= FK_RULES || !s->used[c->fs.location])
			return -ENOENT;
		c->fs = s->rules[c->fs.location];
		return 0;
	}
	return -EOPNOTSUPP;
}

static int fk_set_rxnfc(struct net_device *nd, struct ethtool_rxnfc *c)
{
	struct fk_settings *s = of(nd);

	if (c->fs.location >= FK_RULES)
		return -EINVAL;
	switch (c->cmd) {
	case ETHTOOL_SRXCLSRLINS:
		s->rules[c->fs.location] = c->fs;
		s->used[c->fs.location] = true;
		return 0;
	case ETHTOOL_SRXCLSRLDEL:
		s->used[c->fs.location] = false;
		return 0;
	}
	return -EOPNOTSUPP;
}

static int fk_get_tunable(struct net_device *nd, const struct ethtool_tunable *t, void *data)
{
	if (t->id != ETHTOOL_RX_COPYBREAK)
		return -EOPNOTSUPP;
	*(u32 *)data = of(nd)->copybreak;
	return 0;
}

static int fk_set_tunable(struct net_device *nd, const struct ethtool_tunable *t, const void *data)
{
	if (t->id != ETHTOOL_RX_COPYBREAK)
		return -EOPNOTSUPP;
	of(nd)->copybreak = *(u32 *)data;
	return 0;
}

static int fk_get_eee(struct net_device *nd, struct ethtool_keee *e)
{
	e->eee_enabled = of(nd)->eee;
	e->tx_lpi_timer = of(nd)->lpi_timer;
	return 0;
}

static int fk_set_eee(struct net_device *nd, struct ethtool_keee *e)
{
	of(nd)->eee = e->eee_enabled;
	of(nd)->lpi_timer = e->tx_lpi_timer;
	return 0;
}

static void fk_get_wol(struct net_device *nd, struct ethtool_wolinfo *w)
{
	w->supported = WAKE_MAGIC | WAKE_UCAST;
	w->wolopts = of(nd)->wol;
}

static int fk_set_wol(struct net_device *nd, struct ethtool_wolinfo *w)
{
	of(nd)->wol = w->wolopts;
	return 0;
}

static int fk_link_ksettings(struct net_device *nd, struct ethtool_link_ksettings *k)
{
	ethtool_link_ksettings_zero_link_mode(k, supported);
	k->base.speed = netif_carrier_ok(nd) ? of(nd)->speed : SPEED_UNKNOWN;
	k->base.duplex = DUPLEX_FULL;
	k->base.port = PORT_FIBRE;
	return 0;
}

const struct ethtool_ops fk_ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_RX_USECS |
		ETHTOOL_COALESCE_RX_MAX_FRAMES | ETHTOOL_COALESCE_USE_ADAPTIVE_RX,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = fk_link_ksettings,
	.get_ringparam = fk_get_rings,
	.set_ringparam = fk_set_rings,
	.get_channels = fk_get_channels,
	.set_channels = fk_set_channels,
	.get_coalesce = fk_get_coalesce,
	.set_coalesce = fk_set_coalesce,
	.get_pauseparam = fk_get_pause,
	.set_pauseparam = fk_set_pause,
	.get_fecparam = fk_get_fec,
	.set_fecparam = fk_set_fec,
	.get_sset_count = fk_sset_count,
	.get_strings = fk_strings,
	.get_priv_flags = fk_get_flags,
	.set_priv_flags = fk_set_flags,
	.get_msglevel = fk_get_level,
	.set_msglevel = fk_set_level,
	.get_rxfh_key_size = fk_key_size,
	.get_rxfh_indir_size = fk_indir_size,
	.get_rxfh = fk_get_rss,
	.set_rxfh = fk_set_rss,
	.get_rxfh_fields = fk_get_fields,
	.set_rxfh_fields = fk_set_fields,
	.get_rxnfc = fk_get_rxnfc,
	.set_rxnfc = fk_set_rxnfc,
	.get_tunable = fk_get_tunable,
	.set_tunable = fk_set_tunable,
	.get_eee = fk_get_eee,
	.set_eee = fk_set_eee,
	.get_wol = fk_get_wol,
	.set_wol = fk_set_wol,
};

#if IS_ENABLED(CONFIG_DCB)
static int fk_get_ets(struct net_device *nd, struct ieee_ets *ets)
{
	*ets = of(nd)->ets;
	return 0;
}

static int fk_set_ets(struct net_device *nd, struct ieee_ets *ets)
{
	of(nd)->ets = *ets;
	of(nd)->ets.ets_cap = IEEE_8021QAZ_MAX_TCS;
	return 0;
}

static int fk_get_rates(struct net_device *nd, struct ieee_maxrate *rates)
{
	*rates = of(nd)->rates;
	return 0;
}

static int fk_set_rates(struct net_device *nd, struct ieee_maxrate *rates)
{
	of(nd)->rates = *rates;
	return 0;
}

static int fk_get_buffers(struct net_device *nd, struct dcbnl_buffer *buffers)
{
	*buffers = of(nd)->buffers;
	return 0;
}

static int fk_set_buffers(struct net_device *nd, struct dcbnl_buffer *buffers)
{
	u32 total = of(nd)->buffers.total_size;

	of(nd)->buffers = *buffers;
	of(nd)->buffers.total_size = total;
	return 0;
}

static int fk_get_pfc(struct net_device *nd, struct ieee_pfc *pfc)
{
	pfc->pfc_cap = IEEE_8021QAZ_MAX_TCS;
	pfc->pfc_en = of(nd)->pfc;
	return 0;
}

static int fk_set_pfc(struct net_device *nd, struct ieee_pfc *pfc)
{
	of(nd)->pfc = pfc->pfc_en;
	return 0;
}

static u8 fk_get_dcbx(struct net_device *nd)
{
	return of(nd)->dcbx;
}

static u8 fk_set_dcbx(struct net_device *nd, u8 mode)
{
	of(nd)->dcbx = mode;
	return 0;
}

static int fk_get_trust(struct net_device *nd, u8 *selectors, int *count)
{
	*count = of(nd)->trusts;
	memcpy(selectors, of(nd)->trust, *count);
	return 0;
}

static int fk_set_trust(struct net_device *nd, u8 *selectors, int count)
{
	of(nd)->trusts = count;
	memcpy(of(nd)->trust, selectors, count);
	return 0;
}

/*
 * As mlx5 does: the hardware keeps the priority of each DSCP value, and forgets
 * one only if it is deleted from the kernel's table.
 */
static bool fk_is_dscp(struct dcb_app *app)
{
	return app->selector == IEEE_8021QAZ_APP_SEL_DSCP && app->protocol < ARRAY_SIZE(((struct fk_settings *)0)->dscp);
}

static int fk_set_app(struct net_device *nd, struct dcb_app *app)
{
	struct dcb_app old = { .selector = app->selector, .protocol = app->protocol };

	if (!fk_is_dscp(app))
		return -EINVAL;
	old.priority = of(nd)->dscp[app->protocol];
	dcb_ieee_delapp(nd, &old);
	of(nd)->dscp[app->protocol] = app->priority;
	return dcb_ieee_setapp(nd, app);
}

static int fk_del_app(struct net_device *nd, struct dcb_app *app)
{
	int err;

	if (!fk_is_dscp(app) || of(nd)->dscp[app->protocol] != app->priority)
		return -ENOENT;
	err = dcb_ieee_delapp(nd, app);
	if (!err)
		of(nd)->dscp[app->protocol] = 0;
	return err;
}

const struct dcbnl_rtnl_ops fk_dcb_ops = {
	.ieee_getets = fk_get_ets,
	.ieee_setets = fk_set_ets,
	.ieee_getmaxrate = fk_get_rates,
	.ieee_setmaxrate = fk_set_rates,
	.ieee_getpfc = fk_get_pfc,
	.ieee_setpfc = fk_set_pfc,
	.ieee_setapp = fk_set_app,
	.ieee_delapp = fk_del_app,
	.getdcbx = fk_get_dcbx,
	.setdcbx = fk_set_dcbx,
	.dcbnl_setbuffer = fk_set_buffers,
	.dcbnl_getbuffer = fk_get_buffers,
	.dcbnl_setapptrust = fk_set_trust,
	.dcbnl_getapptrust = fk_get_trust,
};
#endif
