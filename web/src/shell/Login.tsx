/** The login. */
import { useEffect, useState } from 'preact/hooks'
import { base, message, request } from '../api/client'
import { t } from '../strings'
import { Button, Field, Note } from '../parts/basic'
import { Logo } from '../parts/icons'
import { query } from './router'
import { logIn } from './session'

export function Login() {
  const [name, setName] = useState('')
  const [password, setPassword] = useState('')
  const [wrong, setWrong] = useState<string | null>(query.peek().get('login') === 'link-used' ? t.login.linkUsed : null)
  const [busy, setBusy] = useState(false)
  const [provider, setProvider] = useState(false)
  useEffect(() => {
    request<{ oidc: boolean }>('/auth/methods').then((methods) => setProvider(methods.oidc), () => undefined)
  }, [])
  return (
    <main class="login">
      <form
        onSubmit={(event) => {
          event.preventDefault()
          setBusy(true)
          logIn(name, password).catch((error: unknown) => {
            setWrong(message(error))
            setBusy(false)
          })
        }}
      >
        <h1 class="brand">
          <Logo /> {t.app}
        </h1>
        {wrong && <Note kind="bad">{wrong}</Note>}
        <Field label={t.login.name}>
          <input class="input" name="username" autocomplete="username" autocapitalize="none" required autofocus value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </Field>
        <Field label={t.login.password} hint={t.login.hint}>
          <input class="input" name="password" type="password" autocomplete="current-password" required value={password} onInput={(event) => setPassword(event.currentTarget.value)} />
        </Field>
        <Button kind="first" type="submit" disabled={busy}>
          {t.login.submit}
        </Button>
        {provider && <a class="button" href={`${base}/auth/oidc/login`}>{t.login.provider}</a>}
      </form>
    </main>
  )
}
