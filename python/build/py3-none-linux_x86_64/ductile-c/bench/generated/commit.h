/* Written by the build. */
#define DUCTILE_COMMIT "3c5575383390"
