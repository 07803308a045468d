/* Two threads add to one plain integer. */
#include <pthread.h>

static long sum;

static void *add(void *arg)
{
    (void)arg;
    for (int i = 0; i < 1000; i++)
        sum++;
    return NULL;
}

int main(void)
{
    pthread_t t[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&t[i], NULL, add, NULL))
            return 1;
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    return sum < 0;
}
