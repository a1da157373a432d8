package doctor

var ledgerRules, cniRules, kubeletRules, podRules, configRules, clusterRules []Rule
